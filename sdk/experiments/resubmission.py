"""New jobs for trials whose jobs no longer exist, or that were deferred."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from detslurm._base.process import Identity
from detslurm.jobs.deferred import is_over, send, settle, submit_as_many, within_array
from detslurm.jobs.resubmit import (
    COMMAND_PATIENCE,
    submitted_fact,
    successor_request,
    workers_request,
)
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.submission.deferring import no_room
from detslurm.slurm import (
    Cluster,
    JobArray,
    JobRequest,
    SlurmError,
    SubmitLimitReached,
    plan_arrays,
    turns,
)
from detslurm.slurm.command import is_transient
from detslurm.slurm.hostlist import contiguous_ranges
from detslurm.store import ExperimentDir, ExperimentFacts, fold_facts
from detslurm.store.records import Resubmitting

_WAIT, _EVERY = 30.0, 0.2
"""Seconds for which a command waits for another one's jobs, and between two looks."""

_SUBMITTING = (
    "another command is submitting its jobs now. If it was interrupted on another machine, try"
    f" again in {COMMAND_PATIENCE / 60:.0f} min"
)

_Plain = list[dict[str, Any]]
"""The facts of an experiment as they are read."""

_one_at_a_time = threading.Lock()
"""An announcement of this process is over for the call that has it."""


def resubmit(
    experiment: ExperimentDir, indices: Sequence[int], cluster: Cluster, read: int
) -> None:
    """Queue new jobs for those of these trials that were not submitted again after fact `read`.
    Together they run no more at once than is allowed. Raises SlurmError, NeverSubmitted, and
    LifecycleError where another command is busy for long."""
    while True:
        with turn(experiment, cluster) as (plain, facts):
            left = left_since(read, facts, indices)
            planned = _plan(experiment, plain, facts, left, cluster)
            if not planned:
                return
            with announced(experiment, facts, [part for part, *_ in planned]) as claimed:
                if claimed:
                    return _submit(experiment, planned, cluster)


@contextmanager
def turn(experiment: ExperimentDir, cluster: Cluster) -> Iterator[tuple[_Plain, ExperimentFacts]]:
    """Wait until no other command queues jobs for it; its facts then. Raises as `resubmit`."""
    own, deadline = str(Identity.own()), time.monotonic() + _WAIT
    with _one_at_a_time:
        while True:
            plain = list(experiment.facts())
            facts = ExperimentFacts().fold(plain)
            other = facts.resubmitting
            if other is None:
                break
            if other.process == own or is_over(other.process, other.time):
                _settle(experiment, plain, facts, other, cluster)
            elif time.monotonic() > deadline:
                raise LifecycleError(f"experiment {experiment.id}: {_SUBMITTING}")
            else:
                time.sleep(_EVERY)
        yield plain, facts


@contextmanager
def announced(
    experiment: ExperimentDir, facts: ExperimentFacts, parts: Sequence[Part]
) -> Iterator[bool]:
    """Announce the jobs that are queued meanwhile, as the next of these facts; False where another
    fact was faster. It stays open where the cluster's answer is unclear: there may be a job."""
    claim = Resubmitting(parts=tuple(parts), process=str(Identity.own()))
    if not experiment.append_next(claim, facts.count):
        yield False
        return
    try:
        yield True
    except SlurmError as error:
        if not is_transient(error.message):
            experiment.append(Resubmitting())
        raise
    experiment.append(Resubmitting())


def left_since(read: int, facts: ExperimentFacts, indices: Sequence[int]) -> list[int]:
    """Those of these trials that were not submitted again after fact `read`."""
    taken = facts.submitted_after(read)
    return [index for index in indices if facts.trial_ids[index] not in taken]


def mark_of(announcement: int, part: int = 0) -> str:
    """The mark of the job of this part of an announcement, by which the job is found again."""
    return f"announced-{announcement}-{part}"


def _settle(
    experiment: ExperimentDir,
    plain: _Plain,
    facts: ExperimentFacts,
    announcement: Resubmitting,
    cluster: Cluster,
) -> None:
    """Record a live job that a command has queued before it died, or that there is none. A user's
    own batch script is held until its job is recorded: that job is cancelled."""
    recorded = {job.job_id.partition("_")[0] for job in facts.jobs}
    for i, part in enumerate(itertools.starmap(Part, announcement.parts)):
        mark = mark_of(announcement.n, i)
        job_id = cluster.submitted(experiment.jobs, mark)
        if job_id is None or job_id in recorded:
            continue
        known = cluster.query([job_id]).values()
        if known and all(job.final for job in known):
            continue
        if not facts.created.managed:
            cluster.cancel([job_id])
            continue
        request = _request(experiment, plain, facts, part, mark)
        fact = submitted_fact(cluster.name, job_id, part.first, request, each=part.each)
        experiment.append_next(fact, facts.count)
        return
    experiment.append_next(Resubmitting(), facts.count)


def _plan(
    experiment: ExperimentDir,
    plain: _Plain,
    facts: ExperimentFacts,
    indices: list[int],
    cluster: Cluster,
) -> list[_Planned]:
    """The jobs for these trials, by the announcement that comes next."""
    origin = facts.origin  # a replacement is run by the job of what it replaces
    share = next((job.each for job in facts.jobs), 1)
    parts = [  # one array each
        part
        for trials in contiguous_ranges(origin.get(index, index) for index in indices)
        for piece, each in _pieces(trials, share)
        for part in _parts(piece, each, cluster)
    ]
    in_turn = turns([part.elements for part in parts], throttle(experiment, facts))
    requests = _requests(experiment, plain, facts, parts)
    triples = zip(parts, requests, in_turn, strict=True)
    return [
        (part, request.with_changes(throttle=m), after) for part, request, (m, after) in triples
    ]


def _requests(
    experiment: ExperimentDir, plain: _Plain, facts: ExperimentFacts, parts: Sequence[Part]
) -> list[JobRequest]:
    """The requests of the announcement that comes next."""
    marks = (mark_of(facts.count + 1, i) for i in range(len(parts)))
    pairs = zip(parts, marks, strict=True)
    return [_request(experiment, plain, facts, part, mark) for part, mark in pairs]


def _request(
    experiment: ExperimentDir, plain: _Plain, facts: ExperimentFacts, part: Part, mark: str
) -> JobRequest:
    """The request of a job that is announced, marked so that it is found again."""
    if facts.searching:
        return workers_request(plain, experiment, part.elements).with_changes(mark=mark)
    request = successor_request(plain, experiment, part.first, each=part.each)
    return request.with_changes(count=part.elements if part.elements > 1 else None, mark=mark)


def _submit(experiment: ExperimentDir, planned: Sequence[_Planned], cluster: Cluster) -> None:
    job_ids: list[str] = []
    for part, request, after in planned:
        if after is not None:
            request = request.with_changes(dependency=f"afterany:{job_ids[after]}")
        job_ids.append(cluster.submit(request))
        fact = submitted_fact(cluster.name, job_ids[-1], part.first, request, each=part.each)
        experiment.append(fact)


def _pieces(trials: range, each: int) -> Iterator[tuple[range, int]]:
    """Shares of `each` trials a job, and one job for the rest: no trial has two jobs."""
    rest = len(trials) % each
    whole = range(trials.start, trials.stop - rest)
    if whole:
        yield whole, each
    if rest:
        yield range(whole.stop, trials.stop), rest


class Part(NamedTuple):
    """One job or array: the index of its first trial, its elements, the trials of each."""

    first: int
    elements: int
    each: int


# A part, its request, and the number of the job that must end before it starts.
_Planned = tuple[Part, JobRequest, int | None]


def _parts(trials: range, each: int, cluster: Cluster) -> Iterator[Part]:
    """The jobs for consecutive trials: one, or as few arrays as the cluster accepts."""
    count = len(trials) // each
    arrays: Sequence[JobArray] = (JobArray(0, 1),)
    if count > 1:
        limits = cluster.limits()
        arrays = plan_arrays(
            count, max_array_size=limits.max_array_size, max_array_tasks=limits.max_array_tasks
        )
    for array in arrays:
        yield Part(trials.start + array.first * each, array.count, each)


def submit_workers(experiment: ExperimentDir, count: int, cluster: Cluster, read: int) -> bool:
    """Queue up to `count` more workers for a search, as there is room; False where jobs were
    submitted after fact `read`. Raises as `resubmit`, SubmitLimitReached without any room."""
    with turn(experiment, cluster) as (plain, facts):
        if any(job.fact > read for job in facts.jobs):
            return False
        size = within_array(count, cluster)
        parts = [Part(0, min(size, count - i), 1) for i in range(0, count, size)]
        requests = _requests(experiment, plain, facts, parts)
        with announced(experiment, facts, parts) as claimed:
            for request in requests if claimed else ():
                try:
                    job_id, sent, _ = submit_as_many(cluster, request)
                except SubmitLimitReached:
                    if request is requests[0]:
                        raise
                    break
                experiment.append(submitted_fact(cluster.name, job_id, 0, sent))
        return claimed


def throttle(experiment: ExperimentDir, facts: ExperimentFacts) -> int | None:
    """How many trials may run at once, by the configuration and by later settings."""
    concurrent = experiment.config()["searcher"].get("max_concurrent_trials")
    return min(filter(None, (facts.trials_at_once, concurrent)), default=None)


def submit_deferred(experiment: ExperimentDir, cluster: Cluster, alive: int) -> None:
    """Submit deferred jobs, as far as there is room; `alive` jobs continue with the rest. Raises
    `LifecycleError` where nothing can be submitted and no job is left."""
    facts = fold_facts(experiment)
    while settle(experiment, facts, cluster, lambda job: not _is_running(job, cluster)):
        facts = fold_facts(experiment)
    at_once = throttle(experiment, facts)
    most = None if at_once is None else max(0, at_once - alive)
    sent = send(experiment, facts, cluster, "", most)
    if sent is None and not alive and facts.deferral is not None:
        problem = no_room(facts.deferral.limit) if facts.deferred else _SUBMITTING
        raise LifecycleError(f"experiment {experiment.id}: {problem}")


def _is_running(job: str, cluster: Cluster) -> bool:
    """As far as the queue knows: the user has asked, and what it does not know counts as gone."""
    known = cluster.query([job]).get(job)
    return known is not None and known.running
