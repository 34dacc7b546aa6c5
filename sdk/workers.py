"""Let a search go on whose workers are held, or gone."""

from __future__ import annotations

from detslurm.sdk import actions
from detslurm.sdk.queues import Queues
from detslurm.sdk.resubmission import submit_workers
from detslurm.sdk.snapshot import ExperimentSnapshot
from detslurm.searcher import Search, State
from detslurm.store import EventLog
from detslurm.store.searchend import with_checkpoints


def go_on(one: ExperimentSnapshot, queues: Queues) -> bool:
    """Release the workers that are held, and queue as many more as trials wait for.

    False where a queue does not answer, so that nothing is known to go on.
    """
    queue = one.without_foreign_jobs(queues.query((), queue_only=one.worker_jobs))
    if queue.unreachable:
        return False  # who can't be seen must not be replaced
    alive = [
        job_ref
        for job_ref in one.worker_jobs
        if job_ref in queue.jobs and not queue.jobs[job_ref].final
    ]
    done = actions.release(alive, queues)
    log: EventLog[State] = EventLog(
        one.directory.search, Search.from_config(one.directory.config())
    )
    state = log.catch_up()
    # A queue that answered without knowing a job counts: the user asked.
    gone = state.workers.keys() - {job_ref.ref for job_ref in alive}
    if events := state.run_ended_events(dict.fromkeys(gone, "released")):
        state = log.commit(with_checkpoints(one.directory, one.facts.trial_ids, events))
    most = int(one.facts.created.get("workers") or 1)
    standbys = {ref for job in one.facts.jobs if job.standby for ref in job.refs}
    working = [job_ref for job_ref in alive if job_ref.ref not in standbys]
    count = min(len(state.waiting()), most) - len(working)
    if count > 0:
        cluster = queues.cluster(str(one.facts.created.get("cluster") or "slurm"))
        submit_workers(one.directory, count, cluster)
    return done
