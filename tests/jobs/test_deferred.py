"""Trials that wait for room in the queue: taken or sent once, whoever dies in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detslurm.jobs.deferred import send, settle, submit_as_many, take
from detslurm.jobs.resubmit import submitted_fact
from detslurm.slurm import Allowance, ClusterLimits, JobRequest, SlurmError, SubmitLimitReached
from detslurm.store import ExperimentDir, ExperimentFacts, Store
from tests.sdk.scenes import Queue


class Log(ExperimentDir):
    """An experiment of ten trials, of which four were submitted."""

    def __init__(self, path: Path, each: int = 1) -> None:
        super().__init__(Store(path), 1)
        request = JobRequest(name="x", command=("true",), folder=path, count=4 // each)
        self.plain: list[dict[str, Any]] = []
        self.append({"type": "created", "trials": 10, "first_trial": 1})
        later = {"type": "deferred", "first_index": 4, "count": 6, "each": each, "limit": "L=4"}
        self.append({**later, "charge": {"user": "alice"}})
        self.append(submitted_fact("slurm", "7", 0, request, each=each))

    def facts(self, after: int = 0) -> Iterator[dict[str, Any]]:
        return iter(self.plain[after:])

    def append(self, record: Any, after: int = 0) -> int:
        plain = msgspec.to_builtins(record)
        self.plain.append({"n": len(self.plain) + 1, **plain})
        return len(self.plain)

    def append_next(self, record: Any, after: int) -> bool:
        return after == len(self.plain) and bool(self.append(record))

    def config(self) -> dict[str, Any]:
        return {}

    @property
    def folded(self) -> ExperimentFacts:
        return ExperimentFacts().fold(self.facts())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def test_what_is_said_of_it(log: Log) -> None:
    assert log.folded.submission == "4 of 10 submitted (limit L=4)"
    assert log.folded.elements == 4


def test_two_jobs_never_take_the_same_trial(log: Log) -> None:
    """The second one has to look again."""
    facts = log.folded
    assert take(log, facts, "slurm", "7_0")
    assert not take(log, facts, "slurm", "7_1")
    assert take(log, log.folded, "slurm", "7_1")
    assert log.folded.adopted == {4: "7_0", 5: "7_1"}
    assert log.folded.deferred == {6, 7, 8, 9}


def test_nothing_is_taken_or_sent_before_the_first_job_is_on_record(log: Log) -> None:
    """Its submitter was killed, or is still waiting for an answer: the trials stay deferred."""
    log.plain = log.plain[:2]
    facts, queue = log.folded, Queue()
    assert not take(log, facts, "slurm", "7_0")
    assert send(log, facts, queue, "7_0", 2) is None
    assert len(log.plain) == 2 and queue.requests == []


def test_nobody_takes_a_trial_after_the_user_has_stopped_it(log: Log) -> None:
    facts = log.folded
    log.append({"type": "intent", "intent": "kill"})
    assert not take(log, facts, "slurm", "7_0")


def test_a_share_is_as_large_as_that_of_a_job(tmp_path: Path) -> None:
    log = Log(tmp_path, each=2)
    assert take(log, log.folded, "slurm", "7_0")
    assert log.folded.deferred == {6, 7, 8, 9}
    queue = Queue(allowed=Allowance(room=9))
    assert send(log, log.folded, queue, "7_0", None) == "101"
    assert queue.requests[0].count == 2 and queue.requests[0].command[-2:] == ("6", "2")
    assert log.folded.submission == ""


def test_as_many_are_sent_as_there_is_room_for(log: Log) -> None:
    queue = Queue(allowed=Allowance(room=2))
    assert send(log, log.folded, queue, "7_0", None) == "101"
    assert log.folded.deferred == {6, 7, 8, 9} and not log.folded.sending
    assert send(log, log.folded, queue, "7_0", 1) == "102"
    assert queue.requests[-1].count is None
    queue.allowed = Allowance(room=0)
    before = len(log.plain)
    assert send(log, log.folded, queue, "7_0", None) is None
    assert len(log.plain) == before


def test_what_the_cluster_refuses_waits_on(log: Log) -> None:
    class Full(Queue):
        def submit(self, request: JobRequest) -> str:
            raise SlurmError("full")

    with pytest.raises(SlurmError):
        send(log, log.folded, Full(allowed=Allowance(room=3)), "7_0", None)
    assert log.folded.deferred == {4, 5, 6, 7, 8, 9} and not log.folded.sending


@pytest.mark.parametrize("queued", [True, False])
def test_an_unclear_answer_makes_no_second_job(log: Log, queued: bool) -> None:
    """The controller may have queued it: nobody takes these trials before that is known."""

    class Unclear(Queue):
        def submit(self, request: JobRequest) -> str:
            if queued:
                super().submit(request)
            raise SlurmError("Socket timed out on send/recv operation")

        def submitted(self, folder: Path, mark: str) -> str | None:
            return "101" if self.requests else None

    queue = Unclear(allowed=Allowance(room=3))
    with pytest.raises(SlurmError):
        send(log, log.folded, queue, "7_0", None)
    assert log.folded.deferred == {7, 8, 9}, "4, 5 and 6 may have a job"
    assert settle(log, log.folded, queue, lambda job: True)
    assert log.folded.unsubmitted == ({7, 8, 9} if queued else {4, 5, 6, 7, 8, 9})


@pytest.mark.parametrize(("room", "sent", "left"), [(4, {4, 5, 6}, 3), (1, {4}, 5), (0, set(), 6)])
def test_half_as_many_are_sent_where_that_is_too_many(
    log: Log, room: int, sent: set[int], left: int
) -> None:
    """The limit that was in the way may not be the one that was asked about."""

    class Narrow(Queue):
        def submit(self, request: JobRequest) -> str:
            if (request.count or 1) > room:
                raise SubmitLimitReached("QOSMaxSubmitJobPerUserLimit")
            return super().submit(request)

    queue = Narrow(allowed=Allowance(room=9))
    if sent:
        assert send(log, log.folded, queue, "7_0", None) == "101"
    else:
        with pytest.raises(SubmitLimitReached):
            send(log, log.folded, queue, "7_0", None)
    facts = log.folded
    assert facts.deferred == {4, 5, 6, 7, 8, 9} - sent and len(facts.deferred) == left
    assert not facts.sending


def test_room_is_asked_of_the_limits_that_count_now(log: Log) -> None:
    """The user has moved the experiment to another QOS since."""

    class Two(Queue):
        def allowance(self, request: JobRequest) -> Allowance:
            return Allowance(room=2 if request.qos == "night" else None)

    queue = Two(allowed=Allowance(room=0))
    assert send(log, log.folded, queue, "7_0", None) is None
    log.append({"type": "set", "field": "qos", "value": "night"})
    assert send(log, log.folded, queue, "7_0", None) == "101"
    assert (queue.requests[0].qos, queue.requests[0].count) == ("night", 2)


@pytest.mark.parametrize("size", [0, 1])
def test_a_site_without_arrays_gets_single_jobs(log: Log, size: int) -> None:
    """MaxArraySize=0 switches arrays off, and 1 leaves one element."""

    class Plain(Queue):
        def limits(self) -> ClusterLimits:
            return ClusterLimits(max_array_size=size)

    queue = Plain(allowed=Allowance(room=3))
    assert send(log, log.folded, queue, "7_0", None) == "101"
    assert [request.count for request in queue.requests] == [None]


@pytest.mark.parametrize(("room", "asked"), [(0, 0), (1, 0), (2, 1)])
def test_the_rules_for_arrays_are_asked_for_where_an_array_is_sent(
    log: Log, room: int, asked: int
) -> None:
    """Three calls to the controller by each job that ends would find no room most of the time."""
    calls: list[None] = []

    class Asked(Queue):
        def limits(self) -> ClusterLimits:
            calls.append(None)
            return super().limits()

    send(log, log.folded, Asked(allowed=Allowance(room=room)), "7_0", None)
    assert len(calls) == asked


def test_a_successor_is_no_further_job(log: Log) -> None:
    """It works in place of the one before it, also for a trial that this one had taken over."""
    assert take(log, log.folded, "slurm", "7_0")
    for index in (1, 4):
        request = JobRequest(name="x", command=("true",), folder=log.path)
        log.append(submitted_fact("slurm", str(20 + index), index, request))
    assert log.folded.elements == 4
    assert send(log, log.folded, Queue(allowed=Allowance(room=2)), "7_0", None)
    assert log.folded.elements == 6


@pytest.mark.parametrize("queued", [True, False])
def test_who_dies_in_the_act_leaves_all_as_it_is(log: Log, queued: bool) -> None:
    """Between the announcement and the record, after sbatch or before it."""

    class Deadly(Queue):
        made: tuple[str | None, str | None] = (None, None)

        def submit(self, request: JobRequest) -> str:
            if queued:
                self.made = super().submit(request), request.mark
            raise KeyboardInterrupt

        def submitted(self, folder: Path, mark: str) -> str | None:
            return next((job for job, made in [self.made] if made == mark), None)

    queue = Deadly(allowed=Allowance(room=3))
    with pytest.raises(KeyboardInterrupt):
        send(log, log.folded, queue, "7_0", None)
    assert log.folded.deferred == {7, 8, 9} and log.folded.unsubmitted == {4, 5, 6, 7, 8, 9}
    assert not settle(log, log.folded, queue, lambda job: False), "it may be at it still"
    assert settle(log, log.folded, queue, lambda job: job == "7_0")
    assert not settle(log, log.folded, queue, lambda job: True)
    assert log.folded.unsubmitted == ({7, 8, 9} if queued else {4, 5, 6, 7, 8, 9})
    assert [job.job_id for job in log.folded.jobs] == ["7", "101"][: 1 + queued]


@pytest.mark.parametrize(("room", "tried"), [(9, [8]), (3, [8, 4, 2]), (0, [8, 4, 2, 1])])
def test_half_as_many_are_tried_where_all_are_too_many(
    tmp_path: Path, room: int, tried: list[int]
) -> None:
    calls: list[int] = []

    class Narrow(Queue):
        def submit(self, request: JobRequest) -> str:
            calls.append(request.count or 1)
            if calls[-1] > room:
                raise SubmitLimitReached("QOSMaxSubmitJobPerUserLimit")
            return super().submit(request)

    request = JobRequest(name="x", command=("true",), folder=tmp_path, count=8, throttle=3)
    if room:
        assert submit_as_many(Narrow(), request)[1].count == tried[-1]
    else:
        with pytest.raises(SubmitLimitReached):
            submit_as_many(Narrow(), request)
    assert calls == tried
