"""The workers of a search, from outside of its jobs: queued when trials wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from detslurm._base.quantities import counted
from detslurm.jobs.workers import Workers
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.resubmission import submit_workers
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.sdk.experiments.stranded import cancel_stranded
from detslurm.sdk.jobs.queues import Queues
from detslurm.sdk.jobs.status import JobRef
from detslurm.searcher import Search, State
from detslurm.slurm import Cluster, JobInfo, own_jobs
from detslurm.store import EventLog, ExperimentDir, ExperimentFacts, fold_facts
from detslurm.store.search_records import end_search, with_checkpoints

# Centres forbid polling the controller: seconds between two queries while trials wait, and else.
_WAITING_SECONDS, _QUIET_SECONDS = 10.0, 60.0


class WorkerPool:
    """Queries the queue now and then, and queues the workers that are missing."""

    def __init__(
        self,
        experiment: ExperimentDir,
        queues: Queues,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._experiment, self._queues, self._clock = experiment, queues, clock
        self._queried_at: float | None = None
        self._gone: set[str] = set()

    def replenish(self, log: EventLog[State]) -> None:
        """Queue workers if trials wait without a worker."""
        if not log.state.runnable_soon or not self._due(bool(log.state.waiting())):
            return
        facts = fold_facts(self._experiment)
        if facts.desired.paused or facts.desired.stopping:
            return
        jobs = self._query(facts)
        if jobs is None:
            return
        workers = Workers.of(jobs)
        # From the state before the query: a worker that has started since has a new fencing token,
        # for which an event of then counts no more.
        events = workers.run_ended_events(log.state)
        state = log.commit(events) if events else log.catch_up()
        # A worker that has taken a trial since is asked for once more, for its present token.
        self._gone |= jobs.keys() - workers.alive - state.workers.keys()
        if count := workers.missing(state, facts.trials_at_once):
            what = f"submit {counted(count, 'worker')}"
            self._queues.act(facts.cluster, what, self._submit, count, facts.count)

    def _submit(self, cluster: Cluster, count: int, read: int) -> None:
        with suppress(LifecycleError):  # a command does so, and the next look counts its workers
            submit_workers(self._experiment, count, cluster, read)

    def _due(self, waiting: bool) -> bool:
        now = self._clock()
        every = _WAITING_SECONDS if waiting else _QUIET_SECONDS
        if self._queried_at is not None and now - self._queried_at < every:
            return False
        self._queried_at = now
        return True

    def _query(self, facts: ExperimentFacts) -> dict[str, JobInfo] | None:
        """The jobs of workers that may be alive; None where the queue does not answer."""
        name = facts.cluster
        refs = [ref for job in facts.jobs for ref in job.refs if ref not in self._gone]
        job_refs = {ref: JobRef(name, ref) for ref in refs}
        queue = self._queues.query(job_refs.values(), since=facts.created.time)
        if name in queue.unreachable:
            return None
        return {ref: queue.jobs[job] for ref, job in job_refs.items() if job in queue.jobs}

    def end(self, state: State) -> None:
        """Record that the search has ended, and cancel its pending jobs."""
        end_search(self._experiment, [trial.outcome for trial in state.trials], state.verdict)
        facts = fold_facts(self._experiment)
        jobs = [job.job_id for job in facts.jobs]
        if jobs:
            self._queues.act(facts.cluster, "cancel workers that wait", self._dismiss, jobs)

    def _dismiss(self, cluster: Cluster, jobs: list[str]) -> None:
        own = own_jobs(cluster, jobs, str(self._experiment.jobs))
        cluster.cancel(own, pending_only=True)


def resume(one: ExperimentSnapshot, queues: Queues) -> bool:
    """Release held workers and queue those that trials wait for; False if a queue is silent."""
    search = Search(one.directory.config())
    log: EventLog[State] = EventLog(one.directory.search, search)
    while (done := _resume(one, queues, search, log)) is None:
        pass
    return done


def _resume(
    one: ExperimentSnapshot, queues: Queues, search: Search, log: EventLog[State]
) -> bool | None:
    """The same, but None where another command has queued workers meanwhile."""
    one.refresh(())
    read, name = one.facts.count, one.facts.cluster
    state = log.catch_up()  # before the query: see `replenish`
    # Some may have come since the facts were read.
    asked = [*one.worker_jobs, *(JobRef(name, ref) for ref in state.workers)]
    queue = one.without_foreign_jobs(queues.query((), queue_only=asked))
    if queue.unreachable:
        return False  # a worker that may be alive must not be replaced
    queue = cancel_stranded(one, queue, queues)
    jobs = {ref: queue.jobs[ref] for ref in asked if ref in queue.jobs}
    workers = Workers.of({ref.ref: job for ref, job in jobs.items()})
    # A queue that answered without knowing a job counts: the user asked.
    gone = dict.fromkeys(state.workers.keys() - workers.alive, "released")
    workers = workers._replace(held=frozenset(), ended={**workers.ended, **gone})
    if events := workers.run_ended_events(state):
        state = log.commit(with_checkpoints(one.directory, one.facts.trial_ids, events))
    # Only now: Slurm may start them at once, and they ask for what waits.
    done = queues.release([ref for ref, job in jobs.items() if not job.final])
    if state.done:  # the process that saw it first died before recording it
        outcomes = [trial.outcome for trial in state.trials]
        reason = search.end_reason(state, one.facts.trial_ids)
        end_search(one.directory, outcomes, state.verdict, reason)
    count = workers.missing(state, one.facts.worker_limit)
    if count and not submit_workers(one.directory, count, queues.cluster(name), read):
        return None
    return done
