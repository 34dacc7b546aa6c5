"""`core.shards()`: each chunk is committed once, whatever becomes of the workers."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detslurm import core
from detslurm._base.process import Identity
from detslurm.sdk import Client
from detslurm.store.chunks import ChunkQueue, ChunkWorker
from detslurm.store.facts import FactLog
from tests.core.jobs import Job, job

__all__ = ["job"]


class MemoryLog(FactLog):
    """Facts in memory."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))
        self.kept: dict[int, dict[str, Any]] = {}

    def put(self, number: int, record: Mapping[str, Any]) -> bool:
        return self.kept.setdefault(number, {**record, "n": number})["n"] == number and (
            self.kept[number] == {**record, "n": number}
        )

    def read(self, number: int, *, expected: bool = False) -> dict[str, Any] | None:
        return self.kept.get(number)

    def facts(self, after: int = 0, **_: bool) -> Iterator[dict[str, Any]]:
        for number in itertools.takewhile(self.kept.__contains__, itertools.count(after + 1)):
            yield self.kept[number]


class Model:
    """Workers over one log, each with the chunks that it has claimed; the dead are known or not,
    and so are the living where all of them are `near`."""

    def __init__(self, chunks: int, *, near: bool = False) -> None:
        self.log, self.chunks, self.near = MemoryLog(), chunks, near
        self.claimed: dict[ChunkWorker, list[int]] = {}
        self.queues: dict[ChunkWorker, ChunkQueue] = {}
        self.known_dead: set[ChunkWorker] = set()
        self.processed: Counter[int] = Counter()
        self.names = itertools.count()

    def start(self) -> ChunkWorker:
        worker = ChunkWorker(f"p-{next(self.names)}-1")
        self.queues[worker] = ChunkQueue(self.log, self.chunks * 3, 3, worker, self.alive)
        self.claimed[worker] = self.queues[worker].advance([], 1)
        return worker

    def alive(self, worker: ChunkWorker) -> bool | None:
        if worker in self.known_dead:
            return False
        return True if self.near and worker in self.queues else None

    def work(self, worker: ChunkWorker, most: int) -> None:
        """Process what is claimed, commit that, and claim more."""
        self.processed.update(self.claimed[worker])
        self.claimed[worker] = self.queues[worker].advance(self.claimed[worker], most)

    def die(self, worker: ChunkWorker, *, known: bool) -> None:
        del self.queues[worker]
        if known:
            self.known_dead.add(worker)

    def committed(self) -> Counter[int]:
        return Counter(chunk for fact in self.log.kept.values() for chunk in fact.get("done", ()))


events = st.lists(
    st.tuples(st.sampled_from(["start", "work", "work", "die", "vanish"]), st.integers(0, 9)),
    max_size=60,
)


@given(events=events, chunks=st.integers(0, 20), near=st.booleans())
def test_each_chunk_is_committed_once(
    events: list[tuple[str, int]], chunks: int, near: bool
) -> None:
    model = Model(chunks, near=near)
    for event, number in events:
        living = [*model.queues]
        if event == "start" and len(living) < 5:
            model.start()
        elif living and event == "work":
            model.work(living[number % len(living)], 1 + number // 3)
        elif living and event != "start":
            model.die(living[number % len(living)], known=event == "die")
    for worker in [*model.queues]:  # what they hold is theirs, and they do it
        while model.claimed[worker]:
            model.work(worker, 3)
    late = model.start()  # which may take over everything that the dead have left
    while model.claimed[late]:
        model.work(late, 3)
    assert model.committed() == Counter(range(chunks))
    if near and all(event != "vanish" for event, _ in events):
        assert max(model.processed.values(), default=1) == 1


def test_those_who_may_live_are_left_alone_until_the_end() -> None:
    model = Model(6)
    slow, other = model.start(), model.start()
    for _ in range(4):
        model.work(other, 1)
    model.work(other, 1)  # all others are done: the slow one may be dead
    assert model.claimed[other] == model.claimed[slow] == [0]
    third = model.start()
    assert model.claimed[third] == [0]  # it came after both claims: a new try
    for worker in (slow, other, third):
        model.work(worker, 1)
    assert model.committed() == Counter(range(6))


def test_preempted_workers_do_not_slow_commits() -> None:
    """Each of the many runs of a trial is the same worker, so commits stay as frequent."""
    log = MemoryLog()
    for run in range(1, 200):
        worker = ChunkWorker(f"p-{run}-1", f"trial {run % 2}", run)
        ChunkQueue(log, 1000, 1, worker, lambda _: None).advance([], 1)
    assert len(ChunkQueue(log, 1000, 1, ChunkWorker("late"), lambda _: None).state.workers) == 2


def test_another_run_goes_on_and_lists_show_how_far(job: Job) -> None:
    """In a job, until it is preempted; the next loop of the process goes on."""
    seen: list[int] = []
    with core.init() as context:
        for items in context.shards(100, 8):
            seen += items
            if len(seen) == 40:
                job.flag.request_preemption()
        assert job.flag.acknowledged and seen == [*range(40)]
    trial = Client(root=job.experiment.store.path).stored_trial(job.trial.id)
    assert trial.view.progress == pytest.approx(5 / 13)
    files = [*(job.experiment.path / "shards" / "default").iterdir()]
    assert len(files) <= 5


def test_evidence_that_a_worker_has_ended(job: Job) -> None:
    """Its process, the end of its run, or a newer run."""
    own, elsewhere = str(Identity.own()), f"{'0' * 32}-1-1"
    trial = str(job.trial.path)
    assert ChunkWorker(own).is_alive() is ChunkWorker(own, trial, 1).is_alive() is True
    assert ChunkWorker(elsewhere).is_alive() is ChunkWorker(elsewhere, trial, 1).is_alive() is None
    assert ChunkWorker("what").is_alive() is None
    job.trial.open_run({"trial": job.trial.id, "time": 1.0})
    assert ChunkWorker(elsewhere, trial, 1).is_alive() is False
    assert ChunkWorker(elsewhere, trial, 2).is_alive() is None
    job.trial.write_end(2, {"outcome": "completed", "time": 2.0})
    assert ChunkWorker(elsewhere, trial, 2).is_alive() is False


def test_counts_that_make_no_sense(job: Job) -> None:
    with core.init() as context:
        assert [*context.shards(5, 2, name="a")] == [range(2), range(2, 4), range(4, 5)]
        assert [*context.shards(5, 2, name="a")] == []
        assert [*context.shards(0, 2, name="none")] == []
        with pytest.raises(ValueError, match=r"begun with 5 items in chunks of 2, not 6"):
            context.shards(6, 2, name="a")
        for wrong in ((-1, 1), (1, 0)):
            with pytest.raises(ValueError, match="chunk at least 1"):
                context.shards(*wrong)
        with pytest.raises(ValueError, match="file's name"):
            context.shards(1, 1, name="../x")
        with pytest.raises(ValueError, match="absolute directory in a job"):
            context.shards(1, 1, directory="progress")


def test_an_error_commits_what_was_done_before(job: Job) -> None:
    with pytest.raises(ZeroDivisionError), core.init() as context:
        for items in context.shards(6, 1):
            1 // (3 - items.start)
    queue = ChunkQueue(
        FactLog(job.experiment.path / "shards" / "default"), 6, 1, ChunkWorker("another")
    )
    assert queue.state.done == {0, 1, 2}


SCRIPT = """
    import os, signal, sys
    import detslurm as det
    from pathlib import Path

    folder, lives = Path(sys.argv[1]), int(sys.argv[2])
    with det.core.init() as core:
        for items in core.shards(40, 1, directory=folder / "progress"):
            done = folder / f"{items.start}.{os.getpid()}"
            done.touch()
            lives -= 1
            if lives == 0:
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_by_hand_that_are_killed(tmp_path: Path) -> None:
    """Evidence: a process of this node that is gone."""
    script = tmp_path / "work.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "DETSLURM_TRACK": "0", "TMPDIR": str(tmp_path)}

    def start(lives: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, str(script), str(tmp_path), str(lives)]
        return subprocess.Popen(argv, env=environment)

    killed = [start(7), start(9)]
    assert [process.wait(300) for process in killed] == [-signal.SIGKILL] * 2
    assert start(0).wait(300) == 0
    done = ChunkQueue(FactLog(tmp_path / "progress" / "default"), 40, 1, ChunkWorker("x"))
    assert done.state.done == {*range(40)}
