"""New jobs for trials whose jobs no longer exist, or that were deferred."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from detslurm._process import Identity
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.submission.deferring import no_room
from detslurm.slurm import Cluster, JobRequest, SlurmError, SubmitLimitReached
from detslurm.slurm.arrays import JobArray, plan_arrays, turns
from detslurm.slurm.command import is_transient
from detslurm.slurm.deferred import is_over, send, settle, submit_as_many, within_array
from detslurm.slurm.hostlist import contiguous_ranges
from detslurm.slurm.resubmit import (
    COMMAND_PATIENCE,
    submitted_fact,
    successor_request,
    workers_request,
)
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
    experiment: ExperimentDir, indices: Iterable[int], cluster: Cluster, read: int
) -> list[str]:
    """Queue new jobs for those of these trials that were not submitted again after fact `read`;
    returns the job ids. Together they run no more at once than is allowed.

    Raises SlurmError, NeverSubmitted, and LifecycleError where another command is busy for long.
    """
    with _one_at_a_time:
        return _submit(experiment, _announce(experiment, indices, cluster, read), cluster)


def _announce(
    experiment: ExperimentDir, indices: Iterable[int], cluster: Cluster, read: int
) -> list[_Planned]:
    """Record what is about to be submitted, once no other command is busy with that."""
    own, deadline = str(Identity.own()), time.monotonic() + _WAIT
    while True:
        plain = list(experiment.facts())
        facts = ExperimentFacts().fold(plain)
        if (other := facts.resubmitting) is not None:
            if other.process == own or is_over(other.process, other.time):
                _settle(experiment, plain, facts, cluster)
            elif time.monotonic() > deadline:
                raise LifecycleError(f"experiment {experiment.id}: {_SUBMITTING}")
            else:
                time.sleep(_EVERY)
            continue
        taken = facts.submitted_after(read)
        left = [index for index in indices if facts.trial_ids[index] not in taken]
        planned = _plan(experiment, plain, left, cluster)
        parts = tuple((part.first, part.elements, part.each) for part, *_ in planned)
        claim = Resubmitting(parts=parts, process=own)
        if not left or experiment.append_next(claim, facts.count):
            return planned


def _settle(
    experiment: ExperimentDir, plain: _Plain, facts: ExperimentFacts, cluster: Cluster
) -> None:
    """Record a live job that a command has queued before it died, or that there is none."""
    announced = facts.resubmitting or Resubmitting()
    recorded = {job.first_index for job in facts.jobs if job.fact > announced.n}
    for part in itertools.starmap(_Part, announced.parts):
        if part.first in recorded:
            continue
        request = _request(experiment, plain, announced.n, part)
        job_id = cluster.submitted(request)
        known = cluster.query([job_id]).values() if job_id else ()
        if job_id and not (known and all(job.final for job in known)):
            fact = submitted_fact(cluster.name, job_id, part.first, request, each=part.each)
            experiment.append_next(fact, facts.count)
            return
    experiment.append_next(Resubmitting(), facts.count)


def _plan(
    experiment: ExperimentDir, plain: _Plain, indices: list[int], cluster: Cluster
) -> list[_Planned]:
    """The jobs for these trials, by the announcement that comes next."""
    facts = ExperimentFacts().fold(plain)
    origin = facts.origin  # a replacement is run by the job of what it replaces
    share = next((job.each for job in facts.jobs), 1)
    parts = [  # one array each
        part
        for trials in contiguous_ranges(origin.get(index, index) for index in indices)
        for piece, each in _pieces(trials, share)
        for part in _parts(piece, each, cluster)
    ]
    in_turn = turns([part.elements for part in parts], throttle(experiment, facts))
    request = partial(_request, experiment, plain, facts.count + 1)
    pairs = zip(parts, in_turn, strict=True)
    return [(part, request(part).with_changes(throttle=m), after) for part, (m, after) in pairs]


def _request(experiment: ExperimentDir, plain: _Plain, number: int, part: _Part) -> JobRequest:
    """The request of a job that is announced by this fact, marked so that it is found again."""
    request = successor_request(plain, experiment, part.first, each=part.each)
    count = part.elements if part.elements > 1 else None
    return request.with_changes(count=count, mark=f"announced-{number}-{part.first}")


def _submit(experiment: ExperimentDir, planned: list[_Planned], cluster: Cluster) -> list[str]:
    """Submit and record. Where the cluster's answer is unclear, the announcement stays open."""
    job_ids: list[str] = []
    for part, request, after in planned:
        if after is not None:
            request = request.with_changes(dependency=f"afterany:{job_ids[after]}")
        try:
            job_ids.append(cluster.submit(request))
        except SlurmError as error:
            if not is_transient(error.message):
                experiment.append(Resubmitting())
            raise
        fact = submitted_fact(cluster.name, job_ids[-1], part.first, request, each=part.each)
        experiment.append(fact)
    if planned:
        experiment.append(Resubmitting())
    return job_ids


def _pieces(trials: range, each: int) -> Iterator[tuple[range, int]]:
    """Shares of `each` trials a job, and one job for the rest: no trial has two jobs."""
    rest = len(trials) % each
    whole = range(trials.start, trials.stop - rest)
    if whole:
        yield whole, each
    if rest:
        yield range(whole.stop, trials.stop), rest


class _Part(NamedTuple):
    """One job or array: the index of its first trial, its elements, the trials of each."""

    first: int
    elements: int
    each: int


# What is submitted for a part, and the number of the job that must end before it starts.
_Planned = tuple[_Part, JobRequest, int | None]


def _parts(trials: range, each: int, cluster: Cluster) -> Iterator[_Part]:
    """The jobs for consecutive trials: one, or as few arrays as the cluster accepts."""
    count = len(trials) // each
    arrays: Sequence[JobArray] = (JobArray(0, 1),)
    if count > 1:
        limits = cluster.limits()
        arrays = plan_arrays(
            count, max_array_size=limits.max_array_size, max_array_tasks=limits.max_array_tasks
        )
    for array in arrays:
        yield _Part(trials.start + array.first * each, array.count, each)


def submit_workers(experiment: ExperimentDir, count: int, cluster: Cluster) -> None:
    """Queue `count` more workers for a search, or as many as there is room for. Raises SlurmError,
    `SubmitLimitReached` only where there is no room at all."""
    left = count
    while left:
        request = workers_request(experiment.facts(), experiment, within_array(left, cluster))
        try:
            job_id, request = submit_as_many(cluster, request)
        except SubmitLimitReached:
            if left == count:
                raise
            return
        experiment.append(submitted_fact(cluster.name, job_id, 0, request))
        left -= request.count or 1


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
