"""Trials that wait for room in the queue: taken over by a job, or submitted as room appears.

Each action is announced by a fact first, committed only if nothing else has happened: no two jobs
take or send the same trials. A process that dies between `sbatch` and the record of it leaves a job
whose script has the number of the announcement in its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from detslurm._base.process import Identity
from detslurm.jobs.resubmit import (
    COMMAND_PATIENCE,
    NeverSubmitted,
    deferred_request,
    is_moved,
    submitted_fact,
)
from detslurm.slurm import Cluster, ClusterLimits, JobRequest, SlurmError, SubmitLimitReached
from detslurm.slurm.command import is_transient
from detslurm.store import ExperimentDir, ExperimentFacts
from detslurm.store.records import Deferred, Sending


def submit_as_many(cluster: Cluster, request: JobRequest) -> tuple[str, JobRequest, str]:
    """Queue an array, or half of it, a quarter ... until the cluster accepts it.

    Returns the job's id, the accepted request, and Slurm's name of the limit that was in the way of
    more, which is empty if unknown. Raises `SubmitLimitReached` where the cluster
    accepts not even one element.
    """
    limit = ""
    while True:
        try:
            return cluster.submit(request), request, limit
        except SubmitLimitReached as refusal:
            limit = refusal.limit
            half = (request.count or 1) // 2
            if not half:
                raise
        throttle = None if half == 1 else request.throttle
        request = request.with_changes(count=half if half > 1 else None, throttle=throttle)


def within_array(count: int, cluster: Cluster) -> int:
    """So many elements, or as many as one array has at most; without arrays, a single job.

    The site is asked only about several.
    """
    if count <= 1:
        return count
    try:
        limits = cluster.limits()
    except SlurmError:  # compute nodes may lack the tools, and submit all the same
        limits = ClusterLimits()
    largest = min(limits.max_array_size - 1, limits.max_array_tasks or limits.max_array_size)
    return max(min(count, largest), 1)


def take(log: ExperimentDir, facts: ExperimentFacts, cluster: str, ref: str) -> bool:
    """Let job `ref` go on with the next deferred trials, as many as one job runs.

    False where nothing is deferred, or where something else has happened: look again then.
    """
    if facts.deferral is None or not facts.deferred:
        return False
    trials = _next(facts, facts.deferral.each)
    try:
        request = deferred_request(log.facts(), log, trials.start, each=len(trials))
    except NeverSubmitted:
        return False  # the first job's submission is not recorded yet, or never will be
    fact = submitted_fact(cluster, ref, trials.start, request, each=len(trials))
    fact["jobs"][0]["adopted"] = True
    return log.append_next(fact, facts.count)


def send(
    log: ExperimentDir, facts: ExperimentFacts, cluster: Cluster, by: str, most: int | None
) -> str | None:
    """Submit deferred trials as far as there is room; the job's id.

    `by` is the job that does it, empty for a user's command; `most` elements at most. An unclear
    answer of the cluster leaves the announcement for `settle`: there may be a job.
    """
    reason = facts.deferral
    if reason is None or not facts.deferred or most == 0:
        return None
    try:
        room = _room(log, facts, cluster, reason)
        room = within_array(room if most is None else min(room, most), cluster)
        if room < 1:
            return None
        return _send(log, facts.count, cluster, by, _next(facts, room * reason.each), reason)
    except NeverSubmitted:
        return None  # as in `take`


def _send(
    log: ExperimentDir, after: int, cluster: Cluster, by: str, trials: range, reason: Deferred
) -> str | None:
    """Announce and submit these trials, or half of them, a quarter ... if that is too many."""
    request = _marked(log, after + 1, trials, reason.each)  # it may raise: before the claim
    if not log.append_next(_announcement(trials, by), after):
        return None
    try:
        job_id = cluster.submit(request)
    except SlurmError as error:
        if is_transient(error.message):
            raise
        after = log.append(_given_back(trials, reason))
        fewer = len(trials) // reason.each // 2 * reason.each
        if not isinstance(error, SubmitLimitReached) or not fewer:
            raise
        return _send(log, after, cluster, by, trials[:fewer], reason)
    log.append(submitted_fact(cluster.name, job_id, trials.start, request, each=reason.each))
    return job_id


def _announcement(trials: range, by: str) -> Sending:
    process = "" if by else str(Identity.own())
    return Sending(first_index=trials.start, count=len(trials), job=by, process=process)


def settle(
    log: ExperimentDir, facts: ExperimentFacts, cluster: Cluster, has_died: Callable[[str], bool]
) -> bool:
    """Record what became of one announcement whose author has died; whether there was any."""
    reason = facts.deferral
    for number, one in facts.sending.items():
        if reason is None or not (has_died(one.job) if one.job else is_over(one.process, one.time)):
            continue
        trials = range(one.first_index, one.first_index + one.count)
        request = _marked(log, number, trials, reason.each)
        job_id = cluster.submitted(request.folder, request.mark)
        if job_id is None:
            return log.append_next(_given_back(trials, reason), facts.count)
        fact = submitted_fact(cluster.name, job_id, trials.start, request, each=reason.each)
        return log.append_next(fact, facts.count)
    return False


def is_over(process: str, announced: float | None) -> bool:
    """Whether a user's command is gone, by its process or, from other machines, by its age."""
    known = Identity.parse(process)
    if known is not None and known.is_dead():
        return True
    return time.time() - (announced or 0.0) > COMMAND_PATIENCE


def _marked(log: ExperimentDir, number: int, trials: range, each: int) -> Any:
    elements = -(-len(trials) // each)
    request = deferred_request(log.facts(), log, trials.start, each=each, count=elements)
    return request.with_changes(mark=f"announced-{number}")


def _room(log: ExperimentDir, facts: ExperimentFacts, cluster: Cluster, reason: Deferred) -> int:
    """How many more; where Slurm does not show the limit, a single job, for a start."""
    if is_moved(log.facts()):  # other limits count than those that were in the way
        first = min(facts.deferred)
        room = cluster.allowance(deferred_request(log.facts(), log, first, each=reason.each)).room
    elif reason.charge is None:
        return 1
    else:
        room = cluster.allowance_now(reason.charge).room
    return 1 if room is None else room


def _next(facts: ExperimentFacts, most: int) -> range:
    """The first deferred trials, as far as they are consecutive."""
    first = min(facts.deferred)
    gapless = takewhile(facts.deferred.__contains__, range(first, first + most))
    return range(first, first + len(list(gapless)))


def _given_back(trials: range, reason: Deferred) -> Deferred:
    return Deferred(
        first_index=trials.start,
        count=len(trials),
        each=reason.each,
        limit=reason.limit,
        charge=reason.charge,
    )
