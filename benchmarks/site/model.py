"""A site, a workload, and what becomes of them in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.site.costs import Costs, kept
from benchmarks.site.engine import Places, Process, Server, Simulation, Wait
from detslurm.look.top.reader import SHARE, SOONEST
from detslurm.sdk.jobs.queues import QUEUE_SECONDS

MINUTE = 60.0
ARRAY = 1000
"""Trials of one sbatch: Slurm's MaxArraySize."""
QUESTIONS, JOB_QUESTIONS, SQUEUE_QUESTIONS = 5, 4, 3
"""What a submission asks of the controller besides its sbatch, what a job of one step asks, and
what one squeue asks."""
ASKED = 32
"""Of a large grid's ends so many ask for the jobs of others, and those of the last that run."""
DIVISOR = 3
"""Of a search's trials one in so many goes on at each rung."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a cluster can do; the defaults are a modest one.

    Attributes:
        nodes: Its nodes.
        slots: Of each node: trials that run there at once.
        cores: Of each node, for all its trials.
        shared_cores: Cores of all nodes and of the controller together, where they are one machine;
            None for real nodes.
        neighbours: Processes of others that compute on each node all the time.
        metadata_rate: Calls with a path that the file system answers a second, for all clients.
        metadata_latency: Seconds that such a call takes on an idle file system.
        cached: Share of a start's calls that a node answers itself once a job has started there; 0
            is the worst case.
        bandwidth: Bytes a second that it takes from all nodes.
        node_bandwidth: Bytes a second that it takes from one.
        unpack_bandwidth: Bytes a second that a node unpacks onto its own disk.
        controller_speed: How fast its slurmctld is, by the one that was measured.
        starts: Jobs that its scheduler starts a second.
        start_seconds: From the scheduler's decision to the first line of the batch script.
        failures: Of a node, in an hour.
        preemptions: Of a trial, in an hour.
        requeue_seconds: Until a job that was requeued may start.
    """

    nodes: int = 4
    slots: int = 8
    cores: float = 64.0
    shared_cores: float | None = None
    neighbours: float = 0.0
    metadata_rate: float = 20_000.0
    metadata_latency: float = 0.0005
    cached: float = 0.0
    bandwidth: float = 20e9
    node_bandwidth: float = 2e9
    unpack_bandwidth: float = 240e6
    controller_speed: float = 1.0
    starts: float = 100.0
    start_seconds: float = 0.2
    failures: float = 0.0
    preemptions: float = 0.0
    requeue_seconds: float = 120.0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One experiment, and those who look at it.

    Attributes:
        trials: Of the experiment.
        minutes: That a trial trains, if it trains to its end.
        spread: Trials train between 1 - spread and 1 + spread of that.
        checkpoint_minutes: Between two checkpoints; 0 for one at the end alone.
        checkpoint_bytes: Of each.
        imports: Path calls of the user's own imports (torch on its own: 19,000).
        import_seconds: Seconds of a core that these take.
        staged_bytes: Of the environment's archive with `slurm.stage_environment`; 0 without. Each
            node reads it once, and imports name nothing else on the shared file system.
        search: `grid`: a job for each trial; or `asha`: workers that take one after the other,
            and of those that report to it at a rung the search stops two in three.
        rungs: Of such a search, at even distances.
        top: Users with an open `detslurm top`.
        listings: Calls of `experiment list` an hour, by all users.
    """

    trials: int = 100
    minutes: float = 10.0
    spread: float = 0.2
    checkpoint_minutes: float = 0.0
    checkpoint_bytes: float = 1e9
    imports: float = 0.0
    import_seconds: float = 0.0
    staged_bytes: float = 0.0
    search: Literal["grid", "asha"] = "grid"
    rungs: int = 4
    top: int = 1
    listings: float = 6.0


@dataclass
class Training:
    """A trial that trains: how far it is, and how far its last checkpoint is."""

    seconds: float
    rungs: list[float]
    done: float = 0.0
    saved: float = 0.0
    over: bool = False
    runs: bool = False


@dataclass
class Seen:
    """What was recorded while it ran; times are seconds.

    Attributes:
        ended: Trials.
        interrupted: Runs.
        trained: What trials have trained, for good.
        lost: What was trained again.
        stalled: For how long training waited for the store.
        first_lines: From each job's start to its user's first line.
        lines_at: When these were.
        ready_at: When training began.
        decisions: Each decision of the search.
        questions: How often slurmctld was asked something by us.
    """

    ended: int = 0
    interrupted: int = 0
    trained: float = 0.0
    lost: float = 0.0
    stalled: float = 0.0
    first_lines: list[float] = field(default_factory=list)
    lines_at: list[float] = field(default_factory=list)
    ready_at: list[float] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    questions: int = 0


class World:
    """A workload on a site."""

    def __init__(
        self, site: Site, load: Workload, costs: Costs | None = None, seed: int = 0
    ) -> None:
        self.site, self.load, self.costs = site, load, costs or kept()
        self.simulation = sim = Simulation()
        self.metadata = Server(sim, site.metadata_rate, 1 / site.metadata_latency)
        self.controller = Server(sim, site.controller_speed, site.controller_speed)
        self.scheduler = Server(sim, site.starts, site.starts)
        self.transfer = Server(sim, site.bandwidth, site.node_bandwidth)
        shared, count = (site.shared_cores, 1) if site.shared_cores else (site.cores, site.nodes)
        self.cores = [Server(sim, shared, min(1.0, shared), site.neighbours) for _ in range(count)]
        self.places = Places(sim, [n % site.nodes for n in range(site.nodes * site.slots)])
        self.seen = Seen()
        self._random = random.Random(seed)
        self._given = 0  # trials of a search
        self._facts = 0.0  # in the search's log
        self._deciding = 0
        self._warm: set[int] = set()  # nodes whose caches know the files of a start
        self._staging = [Places(sim, [node]) for node in range(site.nodes)]  # one at a time
        self._staged: set[int] = set()

    def run(self) -> None:
        """Let all of it happen."""
        sim, load = self.simulation, self.load
        sim.start(self._submission())
        for _ in range(load.top):
            sim.start(self._watcher())
        if load.listings:
            sim.start(self._listings())
        sim.run(until=lambda: self.is_over)

    @property
    def is_over(self) -> bool:
        """Whether all trials have ended."""
        return self.seen.ended >= self.load.trials

    # -- jobs --------------------------------------------------------------------------------------

    def _submission(self) -> Process:
        costs, load = self.costs, self.load
        yield self.metadata.use(costs.calls.submit)
        arrays = math.ceil(load.trials / ARRAY)
        self.seen.questions += arrays + QUESTIONS
        yield self.controller.use((arrays + QUESTIONS) * costs.controller.submission)
        workers = min(self.site.nodes * self.site.slots, load.trials)
        jobs: Iterable[Process] = (
            (self._job() for _ in range(load.trials))
            if load.search == "grid"
            else (self._worker() for _ in range(workers))
        )
        for job in jobs:
            self.simulation.start(job)

    def _job(self) -> Process:
        """One trial, as often as it is requeued."""
        trial = self._training()
        while not trial.over:
            place = yield from self._allocation()
            yield from self._attempt(trial, place, 0)
            self.places.give_back(place)
            if not trial.over:
                yield from self._requeue()

    def _worker(self) -> Process:
        """One trial of a search after the other."""
        place = yield from self._allocation()
        known = yield from self._decision(0.0)  # it asks for its first trial
        while self._given < self.load.trials:
            self._given += 1
            trial = self._training()
            while not trial.over:
                known = yield from self._attempt(trial, place, known)
                if not trial.over:
                    self.places.give_back(place)
                    yield from self._requeue()
                    place = yield from self._allocation()
                # A run's end and the request for the next are one; one that was requeued asks anew.
                known = yield from self._decision(known)
        self.places.give_back(place)

    def _training(self) -> Training:
        load = self.load
        spread = self._random.uniform(1 - load.spread, 1 + load.spread)
        seconds = MINUTE * load.minutes * spread
        rungs = load.rungs if load.search == "asha" else 0
        return Training(seconds, [seconds * n / rungs for n in range(1, rungs)])

    def _allocation(self) -> Generator[Wait, None, int]:
        """Wait for a slot, and for Slurm; on which node it is."""
        held: list[int] = []
        yield self.places.take(held)
        yield self.scheduler.use(1.0)
        return held[0]

    def _requeue(self) -> Process:
        self.seen.questions += 1
        yield self.controller.use(self.costs.controller.update)
        yield self.simulation.sleep(self.site.requeue_seconds)

    # -- a run -------------------------------------------------------------------------------------

    def _attempt(self, trial: Training, place: int, known: float) -> Generator[Wait, None, float]:
        """Start the user's code, let it train until it is over or interrupted, and end it.

        `known` is how much of the search's log the worker has read; returns what it has then.
        """
        costs, load = self.costs, self.load
        cores = self.cores[place % len(self.cores)]
        asked = 1 - self.site.cached if place in self._warm else 1.0
        self._warm.add(place)
        yield from self._start(cores, asked, place)
        trial.runs = True
        self.simulation.start(self._minutes(trial))
        known = yield from self._train(trial, known)
        trial.runs = False
        yield self.metadata.use(costs.calls.closing)
        yield cores.use(costs.seconds.closing)
        if trial.over:
            self.seen.ended += 1
            self.seen.trained += trial.done
            if load.search == "grid" and self._asks():
                yield self.controller.use(self._squeue())
        if self.is_over:
            calls = costs.calls.compacting + load.trials * costs.calls.compacting_trial
            yield self.metadata.use(calls)
        return known

    def _asks(self) -> bool:
        """Whether a trial's end looks for others whose runner died."""
        every = math.ceil(self.load.trials / ASKED)
        return self.seen.ended % every == 0 or len(self.seen.lines_at) >= self.load.trials

    def _start(self, cores: Server, asked: float, node: int) -> Process:
        """From the job's start through the user's first line and imports to the training."""
        sim, costs, load = self.simulation, self.costs, self.load
        began = sim.now
        self.seen.questions += JOB_QUESTIONS
        yield self.controller.use(costs.controller.job)
        yield sim.sleep(self.site.start_seconds)
        yield self.metadata.use(asked * (costs.calls.runner + costs.calls.agent))
        imports = costs.calls.imports + load.imports
        if load.staged_bytes:
            imports = costs.calls.opening
            yield from self._stage(node)
        controller = costs.controller.job if self.site.shared_cores else 0.0
        yield cores.use(costs.seconds.start + costs.seconds.slurm + controller)
        self.seen.first_lines.append(sim.now - began)
        self.seen.lines_at.append(sim.now)
        yield self.metadata.use(asked * imports)
        yield cores.use(costs.seconds.imports + load.import_seconds)
        yield self.metadata.use(costs.calls.first_report)
        self.seen.ready_at.append(sim.now)

    def _stage(self, node: int) -> Process:
        """Have the environment on the node's disk: who comes first unpacks it, others wait."""
        size, since = self.load.staged_bytes, self.simulation.now
        lock: list[int] = []
        yield self._staging[node].take(lock)
        if node not in self._staged:
            yield self.transfer.use(size)  # unpacked while it is read
            left = size / self.site.unpack_bandwidth - (self.simulation.now - since)
            yield self.simulation.sleep(max(left, 0.0))
            self._staged.add(node)
        self._staging[node].give_back(node)

    def _train(self, trial: Training, known: float) -> Generator[Wait, None, float]:
        """Train from the last checkpoint on."""
        sim = self.simulation
        interruption = self._interruption()
        while not trial.over:
            part = self._next_part(trial)
            if interruption < part:
                yield sim.sleep(interruption)
                self.seen.lost += trial.done + interruption - trial.saved
                self.seen.interrupted += 1
                trial.done = trial.saved
                return known
            interruption -= part
            yield sim.sleep(part)
            trial.done += part
            since = sim.now
            if trial.rungs and trial.done >= trial.rungs[0]:
                trial.rungs.pop(0)
                known = yield from self._decision(known)
                trial.over = self._random.random() > 1 / DIVISOR
            trial.over |= trial.done >= trial.seconds
            yield from self._checkpoint(trial)
            self.seen.stalled += sim.now - since
        return known

    def _next_part(self, trial: Training) -> float:
        """Seconds to what comes next: a checkpoint, a rung, the end."""
        every = MINUTE * self.load.checkpoint_minutes
        ends = [trial.seconds, *trial.rungs[:1], *([trial.saved + every] if every else [])]
        return min(ends) - trial.done

    def _interruption(self) -> float:
        """Seconds to the next one."""
        hourly = self.site.failures + self.site.preemptions
        return self._random.expovariate(hourly / 3600) if hourly else math.inf

    def _checkpoint(self, trial: Training) -> Process:
        yield self.transfer.use(self.load.checkpoint_bytes)
        yield self.metadata.use(self.costs.calls.checkpoint)
        trial.saved = trial.done

    def _minutes(self, trial: Training) -> Process:
        """What a runner reads while its code runs."""
        yield self.simulation.sleep(MINUTE)
        while trial.runs:
            yield self.metadata.use(self.costs.calls.minute)
            yield self.simulation.sleep(MINUTE)

    def _decision(self, known: float) -> Generator[Wait, None, float]:
        """Append to the search's log; how much of it the worker has read then.

        One that is alone reads what others have decided, and links the next number. Those that
        meet wait for the few of them that commit for all.
        """
        sim, costs = self.simulation, self.costs
        since, behind = sim.now, self._facts - known
        self._deciding += 1
        calls = costs.decision(behind)
        yield self.metadata.use(calls)
        facts = 1.0
        if self._deciding > 1:
            crowd = costs.crowd(self._deciding)
            call = (sim.now - since) / calls
            # A number that others took was tried before what they decided was read.
            yield self.metadata.use(crowd.calls - costs.decision(min(behind, 1)))
            yield sim.sleep(call * max(crowd.time - crowd.calls, 0.0))
            facts = crowd.facts
        self._deciding -= 1
        self._facts += facts
        self.seen.decisions.append(sim.now - since)
        return self._facts

    # -- those who look ----------------------------------------------------------------------------

    def _squeue(self) -> float:
        """Seconds of the controller for one listing of the queue."""
        self.seen.questions += SQUEUE_QUESTIONS
        return self.costs.controller.queue + self._running * self.costs.controller.queued_job

    @property
    def _running(self) -> int:
        return self.site.nodes * self.site.slots - self.places.free

    def _watcher(self) -> Process:
        """An open `detslurm top`."""
        yield self.simulation.sleep(self._random.uniform(0, QUEUE_SECONDS))
        asked = -math.inf
        while not self.is_over:
            running, calls = self._running, self.costs.calls
            yield self.metadata.use(calls.look + calls.look_trial * running)
            if self.simulation.now - asked >= QUEUE_SECONDS:
                asked = self.simulation.now
                yield self.controller.use(self._squeue())
            spent = self.costs.seconds.look_trial * running
            yield self.simulation.sleep(max(SOONEST, spent / SHARE))

    def _listings(self) -> Process:
        while not self.is_over:
            yield self.simulation.sleep(self._random.expovariate(self.load.listings / 3600))
            yield self.metadata.use(self.costs.calls.listing)
            yield self.controller.use(self._squeue())
