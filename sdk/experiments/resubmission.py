"""New jobs for trials whose jobs no longer exist, or that were deferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.submission.deferring import no_room
from detslurm.slurm import Cluster, SubmitLimitReached
from detslurm.slurm.arrays import JobArray, plan_arrays, turns
from detslurm.slurm.deferred import send, settle, submit_as_many, within_array
from detslurm.slurm.hostlist import contiguous_ranges
from detslurm.slurm.resubmit import (
    COMMAND_PATIENCE,
    submitted_fact,
    successor_request,
    workers_request,
)
from detslurm.store import ExperimentDir, ExperimentFacts, fold_facts

_SUBMITTING = (
    "another command is submitting its jobs now. If it was interrupted on another machine, try"
    f" again in {COMMAND_PATIENCE / 60:.0f} min"
)


def resubmit(experiment: ExperimentDir, indices: Iterable[int], cluster: Cluster) -> list[str]:
    """Queue new jobs for these trials, which together run no more at once than is allowed; returns
    the job ids. Raises SlurmError, NeverSubmitted."""
    facts = list(experiment.facts())
    folded = ExperimentFacts().fold(facts)
    origin = folded.origin  # a replacement is run by the job of what it replaces
    share = next((job.each for job in folded.jobs), 1)
    parts = [  # one array each
        part
        for trials in contiguous_ranges(origin.get(index, index) for index in indices)
        for piece, each in _pieces(trials, share)
        for part in _parts(piece, each, cluster)
    ]
    job_ids: list[str] = []
    in_turn = turns([part.elements for part in parts], throttle(experiment, folded))
    for part, (most, after) in zip(parts, in_turn, strict=True):
        request = successor_request(
            facts,
            experiment,
            part.first,
            each=part.each,
            after=job_ids[after] if after is not None else None,
        )
        if part.elements > 1:
            request = request.with_changes(count=part.elements, throttle=most)
        job_ids.append(cluster.submit(request))
        fact = submitted_fact(cluster.name, job_ids[-1], part.first, request, each=part.each)
        experiment.append(fact)
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
    """Queue `count` more workers for a search, or as many as there is room for.

    Raises SlurmError, `SubmitLimitReached` only where there is no room at all.
    """
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
    """Submit what was deferred, as far as there is room; `alive` jobs go on with the rest.

    Raises `LifecycleError` where nothing can be submitted and no job is left.
    """
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
