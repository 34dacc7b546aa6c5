"""The use that trials made of GPUs, memory, CPUs and time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from detslurm._base.states import ERROR, LOST, PAUSED, RESTART
from detslurm.sdk.costs.energy import EnergyUse, site_energy
from detslurm.slurm import SlurmError
from detslurm.store import (
    SLURM,
    Energy,
    ExperimentFacts,
    RunView,
    TimedRun,
    TrainingTime,
    TrialDir,
    TrialView,
    training_time,
)
from detslurm.store.run_usage import RunUsage, energy_of, read_usage

if TYPE_CHECKING:
    from detslurm.sdk.jobs.queues import Queues

_FAILED = (ERROR, LOST, RESTART)


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """The use that a trial made of its resources. None means that a figure is not available.

    Attributes:
        queue_time: The seconds for which its jobs waited in the queue.
        gpu_percent_p10: For a tenth of the time they were no busier than that.
        memory_peak: The most bytes of its processes on one node at once.
        memory_requested: Its bytes of memory on each node.
        cpus_used: How many CPUs it kept busy, on average.
        steps_lost: How many batches it trained in vain: a later run went on from before them.
        slot_hours_wasted: Slot-hours in which slots were idle, or trained lost batches.
    """

    trial: int
    state: str
    elapsed: float | None = None
    queue_time: float | None = None
    nodes: int | None = None
    slots: int = 0
    gpu_percent: float | None = None
    gpu_percent_p10: float | None = None
    gpu_memory_peak: int | None = None
    memory_peak: int | None = None
    memory_requested: int | None = None
    cpus_used: float | None = None
    cpus_requested: int | None = None
    steps_lost: int = 0
    slot_hours: float | None = None
    slot_hours_wasted: float | None = None
    training_time: TrainingTime | None = None
    energy: EnergyUse | None = None

    @property
    def ettr(self) -> float | None:
        """The effective training time ratio since its first start, from 0 to 1."""
        return None if self.training_time is None else self.training_time.ettr

    @property
    def memory_percent(self) -> float | None:
        """The memory peak in percent of what it has."""
        return _percent(self.memory_peak, self.memory_requested)

    @property
    def cpu_percent(self) -> float | None:
        """The CPUs that it used in percent of those that it has."""
        return _percent(self.cpus_used, self.cpus_requested)


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run: its seconds, its usage, when its job began to wait in the queue, and
    the part that was lost; None where unknown."""

    run: RunView
    seconds: float | None
    usage: RunUsage | None
    queued: float | None
    steps_lost: int = 0
    part_lost: float = 0.0

    @property
    def waited(self) -> float | None:
        """The seconds for which its job waited."""
        if self.queued is None or self.run.started is None:
            return None
        return max(self.run.started - self.queued, 0.0)

    def wasted(self, slots: int) -> float:
        """The slot-seconds of lost training, or of idle slots."""
        seconds, usage = self.seconds or 0.0, self.usage
        idle = 0.0
        if usage is not None and usage.slot_seconds:
            idle = usage.idle_slot_seconds / usage.slot_seconds
        return seconds * slots * (self.part_lost + (1 - self.part_lost) * idle)


def run_figures(
    runs: Sequence[RunView],
    usages: Sequence[RunUsage | None],
    now: float | None,
    submitted: Mapping[str, float] | None = None,
) -> list[RunFigures]:
    """The figures of each run; `now` is the end of a run that goes on, None if unknown."""
    rows = zip(runs, usages, queued_times(runs, submitted), [*runs, None][1:], strict=True)
    return [
        RunFigures(
            run=run,
            seconds=_seconds(run, usage, now if follower is None else None),
            usage=usage,
            queued=queued,
            steps_lost=_steps_lost(run, follower),
            part_lost=_part_lost(run, follower),
        )
        for run, usage, queued, follower in rows
    ]


def _seconds(run: RunView, usage: RunUsage | None, now: float | None) -> float | None:
    # The end of a lost run is the time at which it was found dead, not the time of its death.
    known = run.ended if run.outcome != LOST else None
    end = known if known is not None else (usage.time if usage is not None else None)
    if run.outcome is None and now is not None:
        end = now
    if end is None or run.started is None:
        return None
    return max(end - run.started, 0.0)


def _steps_lost(run: RunView, follower: RunView | None) -> int:
    return 0 if follower is None else max(run.steps - follower.resumed_steps, 0)


def _part_lost(run: RunView, follower: RunView | None) -> float:
    """The part of a run that was in vain: by its batches, or all if it failed without any."""
    trained = run.steps - run.resumed_steps
    if trained > 0:
        return min(_steps_lost(run, follower) / trained, 1.0)
    return 1.0 if run.outcome in _FAILED else 0.0


def efficiency_of(view: TrialView, slots: int, figures: Sequence[RunFigures]) -> Efficiency:
    """The figures of a trial by those of its runs."""
    seconds = [one.seconds for one in figures if one.seconds is not None]
    waits = [one.waited for one in figures if one.waited is not None]
    timed = _timed_runs(view, figures)
    usages = [one.usage for one in figures if one.usage is not None]
    latest = usages[-1].requested if usages else None
    elapsed = sum(seconds) if seconds else None
    known = any(usage.slot_seconds for usage in usages) or any(one.part_lost for one in figures)
    wasted = sum(one.wasted(slots) for one in figures) / 3600
    gpu = defaultdict[int, float](float)
    for usage in usages:
        for percent, spent in usage.gpu_seconds.items():
            gpu[percent] += spent
    return Efficiency(
        trial=view.id,
        state=view.state,
        elapsed=elapsed,
        queue_time=sum(waits) if waits else None,
        nodes=len(view.runs[-1].job.nodes) or None if view.runs else None,
        slots=slots,
        gpu_percent=_mean(gpu),
        gpu_percent_p10=percentile(gpu, 10),
        gpu_memory_peak=_most(usage.gpu_memory_peak for usage in usages),
        memory_peak=_most(usage.memory_peak for usage in usages),
        memory_requested=latest.memory if latest is not None else None,
        cpus_used=_cpus_used(usages),
        cpus_requested=latest.cpus if latest is not None else None,
        steps_lost=sum(one.steps_lost for one in figures),
        slot_hours=None if elapsed is None else elapsed * slots / 3600,
        slot_hours_wasted=wasted if known else None,
        training_time=None if timed is None else training_time(timed, view.checkpoints),
        energy=EnergyUse.of(energy_of(one.usage for one in figures)),
    )


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _cpus_used(usages: Sequence[RunUsage]) -> float | None:
    known = [(u.cpu_seconds, u.seconds) for u in usages if u.cpu_seconds is not None]
    seconds = sum(observed for _, observed in known)
    return sum(spent for spent, _ in known) / seconds if seconds else None


def _mean(weights: Mapping[int, float]) -> float | None:
    total = sum(weights.values())
    return sum(value * weight for value, weight in weights.items()) / total if total else None


def percentile(weights: Mapping[int, float], percent: float) -> float | None:
    """The value that `percent` of the whole weight does not exceed; None of nothing."""
    left = sum(weights.values()) * percent / 100
    for value in sorted(weights):
        left -= weights[value]
        if left <= 0:
            return float(value)
    return None


def queued_times(
    runs: Sequence[RunView], submitted: Mapping[str, float] | None
) -> list[float | None]:
    """When the job of each run began to wait in the queue, by its submission or the end of the run
    before its requeue; None where unknown, and where the trial was paused."""
    return [
        _queued(run, before, submitted) for run, before in zip(runs, [None, *runs], strict=False)
    ]


def _queued(
    run: RunView, before: RunView | None, submitted: Mapping[str, float] | None
) -> float | None:
    job = run.job
    if before is not None and before.job.ref == job.ref:
        again = before.job.restart_count != job.restart_count
        return before.ended if again and before.outcome not in (PAUSED, LOST) else None
    since = (submitted or {}).get(str(job.array_job_id or job.job_id))
    ended = before.ended if before is not None and before.outcome != LOST else None
    # A successor is queued in the moment in which the run before ends.
    return since if since is None or ended is None else max(since, ended)


def submission_times(facts: ExperimentFacts) -> Mapping[str, float] | None:
    """When the jobs were submitted, by id; None where a job runs one trial after the other."""
    is_shared = facts.created.search or any(job.each > 1 for job in facts.jobs)
    return None if is_shared else facts.submission_times


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The use of resources in the part of a trial's time that ends at `time` (unix seconds)."""

    time: float
    run: int
    cpus: float
    memory: int
    gpu_percent: float | None = None


def usage_history(directory: TrialDir, view: TrialView) -> list[UsageRow]:
    """The use of resources by the runs of a trial, in the order of time."""
    usages = ((run.number, run.usage or read_usage(directory, run.number)) for run in view.runs)
    return [
        UsageRow(
            time=(usage.begun or 0.0) + point.end,
            run=number,
            cpus=point.cpu_seconds / point.node_seconds * usage.requested.nodes,
            memory=point.memory,
            gpu_percent=point.gpu_percent,
        )
        for number, usage in usages
        if usage is not None
        for point in usage.history
        if point.node_seconds
    ]


def efficiency(directory: TrialDir, view: TrialView, facts: ExperimentFacts) -> Efficiency:
    """The figures of a trial, read now."""
    usages = [run.usage or read_usage(directory, run.number) for run in view.runs]
    now = time.time() if view.state == "RUNNING" else None
    figures = run_figures(view.runs, usages, now, submission_times(facts))
    return efficiency_of(view, facts.created.slots or 0, figures)


def efficiencies(
    facts: ExperimentFacts, trials: Sequence[tuple[TrialDir, TrialView]], queues: Queues
) -> list[Efficiency]:
    """The figures of an experiment's trials, with Slurm's energy where no other is known."""
    found = [efficiency(directory, view, facts) for directory, view in trials]
    site = site_energy()
    # A job that runs one trial after the other has no energy of a trial.
    if site is None or not site.accounting or submission_times(facts) is None:
        return found
    refs = {
        view.id: {run.job.ref for run in view.runs}
        for one, (_, view) in zip(found, trials, strict=True)
        if one.energy is None and view.ended is not None
    }
    shared = {job.job_id for job in facts.jobs if job.adopted}  # for they ran another trial before
    known = _energy_of_jobs(facts, set().union(*refs.values()) - shared, queues)
    sums = {trial: Energy.sum(known.get(ref) for ref in own) for trial, own in refs.items()}
    return [
        msgspec.structs.replace(one, energy=EnergyUse.of(sums[one.trial]))
        if one.trial in sums
        else one
        for one in found
    ]


def _energy_of_jobs(facts: ExperimentFacts, refs: set[str], queues: Queues) -> dict[str, Energy]:
    if not refs:
        return {}
    try:
        cluster = queues.cluster(facts.cluster)
        joules = cluster.energy(refs, since=facts.created.time)
    except SlurmError as error:
        queues.warn(f"the energy of jobs is not known: {error.message}")
        return {}
    return {ref: Energy({SLURM: one}) for ref, one in joules.items()}


def total_time(several: Iterable[Efficiency]) -> TrainingTime | None:
    """The use of the time of several trials together; None if none has begun."""
    return TrainingTime.total(
        [one.training_time for one in several if one.training_time is not None]
    )


def _timed_runs(view: TrialView, figures: Sequence[RunFigures]) -> list[TimedRun] | None:
    """The runs of a trial for its table of time; None where the time of one is unknown."""
    found = []
    for one in figures:
        run, intervals = one.run, view.spent.get(one.run.number, ())
        end = run.ended if one.seconds is None else (run.started or 0.0) + one.seconds
        if run.started is None or end is None:
            return None
        found.append(
            TimedRun(view=run, end=end, intervals=intervals, queued=one.queued, usage=one.usage)
        )
    return found
