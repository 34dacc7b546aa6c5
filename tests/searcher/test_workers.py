"""Which workers a search lacks, and which runs have ended with theirs."""

from __future__ import annotations

import pytest

from detslurm.jobs.workers import Workers
from detslurm.searcher import SearchTrial, State
from detslurm.slurm import JobInfo


def search(waiting: int, at_work: str = "", settled: str = "") -> State:
    """A search with trials that wait, and trials that workers (a letter each) have."""
    state = State()
    for worker in at_work + settled:
        trial = SearchTrial(target_length=1, reached=1 if worker in settled else 0)
        state.enqueue(state.create(trial), 0)
        state.assign(worker)
    for _ in range(waiting):
        state.enqueue(state.create(SearchTrial()), 0)
    return state


@pytest.mark.parametrize(
    ("state", "workers", "limit", "missing"),
    [
        (search(3), Workers(frozenset()), None, 3),
        (search(3), Workers(frozenset()), 2, 2),
        (search(3, "a"), Workers(frozenset("a")), 3, 2),  # it has a trial
        (search(3), Workers(frozenset("ab")), None, 1),  # they are about to take two of them
        (search(3, settled="a"), Workers(frozenset("a")), None, 2),  # it is about to be free
        (search(2, "ab"), Workers(frozenset("ab")), 2, 0),
        (search(1), Workers(frozenset("a"), ending=frozenset("a")), None, 1),  # takes no more
        (search(1), Workers(frozenset("a"), ending=frozenset("a")), 1, 0),  # but still runs
        (search(1), Workers(frozenset("a"), held=frozenset("a")), 1, 1),
        (search(1), Workers(frozenset("a"), standby=frozenset("a")), 1, 1),
        (search(0), Workers(frozenset("a")), None, 0),
    ],
)
def test_missing_workers(state: State, workers: Workers, limit: int | None, missing: int) -> None:
    """As many as trials wait for, less those that come anyway, within the limit."""
    assert workers.missing(state, limit) == missing


def test_what_the_queue_shows() -> None:
    """Each state of a job has one meaning; of a job that is not named nothing follows."""
    states = {
        "a": ("RUNNING", ""),
        "b": ("COMPLETING", ""),
        "c": ("PENDING", "JobHeldUser"),
        "d": ("PENDING", "Dependency"),
        "e": ("NODE_FAIL", ""),
        "f": ("PENDING", "Priority"),
    }
    jobs = {ref: JobInfo(ref, state, reason) for ref, (state, reason) in states.items()}
    workers = Workers.of(jobs)
    assert workers.alive == frozenset("abcdf")
    assert (workers.ending, workers.held, workers.standby) == (*map(frozenset, "bcd"),)
    waiting = dict.fromkeys("cdf", "released")
    assert workers.ended == {**waiting, "e": "lost"}
    events = workers.run_ended_events(search(0, "aeg"))
    assert [(event["worker"], event["outcome"]) for event in events] == [("e", "lost")]
