"""Somebody who means ill: preempts, requeues, kills, and takes power and store away, at random."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.cluster import Cluster, User, nodes, processes

# Seconds after which the log of a search may lose a fact.
_OLD = 70.0


class Hostile:
    """Does harm to a user's jobs every few seconds inside its `with` block, `most` times. Then an
    event is lost, if none was: in the first minute, and while the store is away, none can be.

    The same seed draws the same kinds of harm; what they hit depends on what runs at that moment.
    Without a limit a slow machine would do nothing but start again.
    """

    def __init__(
        self,
        cluster: Cluster,
        user: User,
        store: Path,
        seed: int,
        most: int,
        *,
        full: Path,
        away: float = 20.0,
    ) -> None:
        """`full` is the file that a job's `faults.so` takes for a full quota; `away` is for how
        many seconds the file server is away."""
        self._cluster, self._user, self._most, self._pause = cluster, user, most, 1.5
        self._store, self._full, self._away = store, full, away
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._rage)
        self._dark: dict[str, float] = {}  # node without power -> when it gets it back
        self._timers: list[threading.Timer] = []  # each ends a harm
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self.failure: BaseException | None = None

    def __enter__(self) -> Hostile:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        for timer in self._timers:
            timer.join()
        for node in list(self._dark):
            self._cluster.boot_node(node)
        print("harm done:", *self.log, sep="\n")
        if self.failure is not None:
            raise self.failure

    def _rage(self) -> None:
        harms: list[tuple[Callable[[], bool], int]] = [
            (self.preempt, 3),
            (self.requeue, 3),
            (self.kill, 6),
            (self.kill_agent, 2),
            (self.hide_store, 1),
            (self.fill_quota, 1),
            (self.lose_record, 1),
            (self.lose_event, 3),
            (self.cut_power, 1),
        ]
        kinds, weights = zip(*harms, strict=True)
        # However short the work is, each kind of harm is done once; but no event is old at first.
        owed = [kind for kind in kinds if kind != self.lose_event]
        try:
            while not self._stop.wait(self._pause * self._random.uniform(0.5, 1.5)):
                self._restore_power()
                enough = self.done.total() >= self._most
                if enough and self.done["lose_event"]:
                    continue
                drawn = self._random.choice(owed or self._random.choices(kinds, weights))
                harm = self.lose_event if enough else drawn
                if harm():
                    self.done[harm.__name__] += 1
                    self.log.append(f"{time.strftime('%H:%M:%S')} {harm.__name__}")
                    owed = [kind for kind in owed if kind != harm]
        except BaseException as error:
            self.failure = error

    def _restore_power(self) -> None:
        for node, due in list(self._dark.items()):
            if time.monotonic() > due:
                self._cluster.daemons.start_node(node)
                del self._dark[node]

    def preempt(self) -> bool:
        """A job of higher priority wants a whole node for a moment."""
        node = self._random.choice(self._lit())
        args = ["-p", "high", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap=sleep 1"]
        return self._user.run("sbatch", *args, check=False).returncode == 0

    def requeue(self) -> bool:
        """A running element of the user's is put back into the queue, without warning."""
        said = self._cluster.command(
            "squeue", "-h", "-r", "-u", self._user.name, "-p", "low", "-t", "R", "-o", "%i"
        )
        refs = sorted(said.split())
        if not refs:
            return False
        return (
            self._user.run("scontrol", "requeue", self._random.choice(refs), check=False).returncode
            == 0
        )

    def kill(self) -> bool:
        """Any one process of the jobs dies: runner, srun, agent, shell or training."""
        return self._kill_one_of(sorted(nodes.job_processes(self._cluster.layout)))

    def kill_agent(self) -> bool:
        """What stands between a run's code and Slurm dies alone; nothing else ends the code."""
        pids = sorted(nodes.job_processes(self._cluster.layout))
        return self._kill_one_of([p for p in pids if "detslurm.exec.agent" in processes.command(p)])

    def _kill_one_of(self, pids: list[int]) -> bool:
        if not pids or not self._somebody_waits():
            return False
        try:
            os.kill(self._random.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def _somebody_waits(self) -> bool:
        """Whether a worker of the user's waits in the queue, and goes on should all others die.

        A worker that dies alone, before it could ask for another, is the end of a search; and a
        standby worker may wait for one that is held.
        """
        waiting = ("squeue", "-h", "-u", self._user.name, "-p", "low", "-t", "PD", "-o", "%r")
        reasons = self._cluster.command(*waiting).splitlines()
        return bool(reasons) and not any("held" in reason.lower() for reason in reasons)

    def hide_store(self) -> bool:
        """The file server lets no user in for a while, in which jobs are preempted and begin."""
        if self._is_away():
            return False
        self._store.chmod(0)
        self._later(self._away, lambda: self._store.chmod(0o700))
        return self.preempt()

    def _is_away(self) -> bool:
        return not self._store.stat().st_mode & 0o700

    def fill_quota(self) -> bool:
        """No job can write to a file for some seconds."""
        if self._full.exists():
            return False
        self._full.touch()
        self._later(8, self._full.unlink)
        return True

    def lose_record(self) -> bool:
        """A fact of the experiment is missing for some seconds, with later ones behind it."""
        return self._lose(sorted(self._store.glob("experiments/*/facts/0*.json"))[1:-1])

    def lose_event(self) -> bool:
        """The same of the search's own log; it counts on facts of the last minute."""
        events = sorted(self._store.glob("experiments/*/search/0*.json"))[:-1]
        return self._lose([e for e in events if time.time() - e.stat().st_mtime > _OLD])

    def _lose(self, records: list[Path]) -> bool:
        if self._is_away() or not records:
            return False
        lost = self._random.choice(records)
        aside = lost.with_suffix(".aside")
        lost.rename(aside)
        self._later(6, lambda: self._find(aside, lost))
        return True

    def _find(self, aside: Path, lost: Path) -> None:
        try:
            lost.hardlink_to(aside)  # fails where a job has filled the gap
            aside.unlink()
        except OSError as error:
            self.failure = error

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        """A thread of its own ends a harm: other harm may take long, and may fail."""
        timer = threading.Timer(seconds, act)
        self._timers.append(timer)
        timer.start()

    def cut_power(self) -> bool:
        """A node is gone, and comes back before or after Slurm has noticed."""
        if self._dark:
            return False
        node = self._random.choice(self._lit())
        self._cluster.kill_node(node)
        self._dark[node] = time.monotonic() + self._random.uniform(3, 20)
        return True

    def _lit(self) -> list[str]:
        return [node for node in self._cluster.spec.node_names() if node not in self._dark]
