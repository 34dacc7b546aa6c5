"""The other workers of a search: who is gone, and how many more there should be."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from detslurm.exec.adoption import DIED
from detslurm.exec.intents import Intents
from detslurm.exec.text_log import print_message, with_long_retries
from detslurm.jobs.deferred import submit_as_many, within_array
from detslurm.jobs.resubmit import (
    NeverSubmitted,
    standby_request,
    submitted_fact,
    workers_request,
)
from detslurm.jobs.workers import Workers
from detslurm.searcher import State
from detslurm.slurm import Cluster, JobInfo, JobRequest, SlurmError, SubmitLimitReached, own_jobs
from detslurm.slurm.command import is_transient
from detslurm.store.records import AddingWorkers, Job

# Seconds between two queries of the queue: while trials wait for workers, and otherwise.
_SOON, _LATER = 10.0, 60.0
# Seconds to the next try where there may be no more jobs.
_FULL = 600.0
# Up to this many workers query that often; more of them do so less often.
_CROWD = 16


class WorkerPool:
    """One worker's view of the others, by few queries of the queue."""

    def __init__(self, intents: Intents, *, ref: str, cluster: Cluster) -> None:
        self._intents, self._ref, self._cluster = intents, ref, cluster
        self._queried_at = time.monotonic()
        self._facts_read = 0  # up to which fact, when the queue was queried
        self._promise = 0  # of more workers, which was open then
        self._full_until = 0.0  # when it is worth asking for more again
        self.may_answer = True  # if the queue is asked again
        self._doubted = 0  # a promise of more workers that was not kept for a while

    def due(self, state: State) -> bool:
        """Whether it is time to query the queue again, though there is work."""
        crowd = max(1.0, len(state.workers) / _CROWD)
        known = Workers(alive=frozenset(state.workers))  # as far as the search itself knows
        pause = (_SOON if known.missing(state, self._limit) else _LATER) * crowd
        return time.monotonic() - self._queried_at >= pause

    def query(self, state: State) -> dict[str, JobInfo] | None:
        """All workers that the queue knows; None where it does not answer."""
        self._queried_at = time.monotonic()
        self._intents.refresh()
        facts = self._intents.facts
        self._facts_read, self._promise = facts.count, facts.promise
        jobs = {_job_id(ref) for ref in state.workers} | set(self._job_ids())
        try:
            seen = self._cluster.query(sorted(jobs))
        except SlurmError as err:
            print_message(f"the other workers can't be looked for: {err}")
            self.may_answer = is_transient(err.message)
            return None
        folder = str(self._intents.experiment.jobs)
        return {ref: job for ref, job in seen.items() if not job.is_foreign_to(folder)}

    def gone(self, state: State, seen: Mapping[str, JobInfo]) -> list[dict[str, Any]]:
        """The events that take trials from workers that do not work at them any more."""
        others = [ref for ref in state.workers if ref != self._ref]
        unclear = [ref for ref in others if ref not in seen or seen[ref].state == "COMPLETING"]
        known = {**seen, **self._evidence(unclear)}
        workers = Workers.of({ref: known[ref] for ref in others if ref in known})
        # The queue's silence proves nothing; but Slurm starts a standby when the others ended.
        outlived = self._outlived
        lost = [ref for ref in others if ref not in known and {ref, _job_id(ref)} & outlived]
        workers = workers._replace(ended={**workers.ended, **dict.fromkeys(lost, "lost")})
        return workers.run_ended_events(state)

    @property
    def _outlived(self) -> set[str]:
        """The jobs whose end this one had to wait for."""
        own = [job for job in self._intents.facts.jobs if job.job_id == self._ref]
        return set().union(*map(_awaited, own))

    def _evidence(self, refs: list[str]) -> dict[str, JobInfo]:
        if not refs:
            return {}
        try:
            return self._cluster.evidence(refs, since=self._intents.facts.created.time)
        except SlurmError:
            return {}

    @property
    def _limit(self) -> int:
        return self._intents.facts.worker_limit

    def _job_ids(self) -> list[str]:
        return [job.job_id for job in self._intents.facts.jobs]

    @property
    def _standbys(self) -> dict[str, Job]:
        return {job.job_id: job for job in self._intents.facts.jobs if job.standby}

    @property
    def is_standby(self) -> bool:
        """Whether this worker came because the others were gone."""
        return self._ref in self._standbys

    def missing(self, state: State, seen: Mapping[str, JobInfo]) -> int:
        """The number of workers that trials wait for and that were not asked for."""
        return Workers.of(seen).missing(state, self._limit)

    def avoid_bad_nodes(self, state: State, seen: Mapping[str, JobInfo]) -> None:
        """Keep workers from nodes where others died before they asked for work."""
        known = self._intents.facts.node_failures.values()
        recorded = set().union(*known)
        died = {
            ref: job
            for ref, job in seen.items()
            if job.state in DIED and ref not in state.requests and ref not in recorded
        }
        if died:
            from detslurm.exec.bad_nodes import BadNodes  # only here: others start without it

            working = {node for ref in state.requests if ref in seen for node in seen[ref].nodes}
            BadNodes(self._intents, lambda: self._cluster).record_jobs(died, seen, working)

    def submit(self, count: int) -> None:
        """Queue more workers, one array at most, unless another worker is just doing so, or the
        user wants none."""
        intents = self._intents
        intents.refresh()
        claim = AddingWorkers(count=count, job=self._ref)
        if intents.cause is not None or self._is_promised() or time.monotonic() < self._full_until:
            return
        if not intents.experiment.append_next(claim, self._facts_read):
            return
        try:
            count = within_array(count, self._cluster)
            request = workers_request(intents.experiment.facts(), intents.experiment, count)
            job_id, request, _ = submit_as_many(self._cluster, request)
        except (SlurmError, NeverSubmitted, OSError) as err:
            if isinstance(err, SubmitLimitReached):
                self._full_until = time.monotonic() + _FULL
            print_message(f"no more workers can be submitted: {err}")
            return
        self._record(job_id, request)

    def _record(self, job_id: str, request: JobRequest, *, standby: bool = False) -> None:
        """Beside a job that no fact names another one would be submitted."""
        experiment = self._intents.experiment
        fact = submitted_fact(self._cluster.name, job_id, 0, request, standby=standby)
        with_long_retries(lambda: experiment.append(fact))

    def _is_promised(self) -> bool:
        """Whether another worker was about to submit some when the queue was queried.

        A promise that has not been kept by the next query is no longer believed.
        """
        fresh = self._promise not in (0, self._doubted)
        self._doubted = self._promise
        return fresh

    def keep_standby(self, seen: Mapping[str, JobInfo]) -> None:
        """Queue a standby worker, which Slurm starts once all others are gone.

        It waits for no held worker, whose hold has no known end, and replaces those
        that do.
        """
        held = {name for ref, job in seen.items() if job.held for name in (ref, _job_id(ref))}
        standbys = self._standbys
        waiting = [ref for ref in standbys if ref in seen and seen[ref].waiting and ref not in held]
        if any(not _awaited(standbys[ref]) & held for ref in waiting):
            return
        self._intents.refresh()
        if self._intents.cause is not None:
            return  # a pause has held the standby that there is
        alive = {ref for ref, job in seen.items() if not (job.final or job.held)}
        live = alive.difference(waiting) | {self._ref}
        jobs = sorted({ref if _job_id(ref) in held else _job_id(ref) for ref in live})
        experiment = self._intents.experiment
        try:
            request = standby_request(experiment.facts(), experiment, jobs)
            job_id = self._cluster.submit(request)
        # `submit` may not have recorded this job yet; the next look tries again.
        except (SlurmError, NeverSubmitted, OSError) as err:
            print_message(f"no standby worker can be submitted: {err}")
            return
        self._record(job_id, request, standby=True)
        self._cancel(waiting)

    def is_last(self, seen: Mapping[str, JobInfo]) -> bool:
        """Whether the queue knows of no other worker that works or is about to."""
        idle = {*self._standbys, *(ref for ref, job in seen.items() if job.held)}
        others = {ref: job for ref, job in seen.items() if ref != self._ref}
        return all(job.final or (job.waiting and ref in idle) for ref, job in others.items())

    def dismiss(self) -> None:
        """Take workers that wait in the queue out of it: the search is over."""
        folder = str(self._intents.experiment.jobs)
        try:
            own = own_jobs(self._cluster, self._job_ids(), folder)
        except SlurmError as err:
            print_message(f"workers stay in the queue: {err}")  # each leaves when it starts
        else:
            self._cancel(own)

    def _cancel(self, job_ids: list[str]) -> None:
        """Take these out of the queue, if they wait."""
        try:
            self._cluster.cancel(job_ids, pending_only=True)
        except SlurmError as err:
            print_message(f"workers stay in the queue: {err}")


def _awaited(job: Job) -> set[str]:
    """Those that must have ended before it starts."""
    kind, _, refs = (job.dependency or "").partition(":")
    return set(refs.split(":")) if kind == "afterany" else set()


def _job_id(ref: str) -> str:
    return ref.partition("_")[0]
