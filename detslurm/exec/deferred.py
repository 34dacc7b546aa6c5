"""A job's part in submitting trials for which there was no room in the queue."""

from __future__ import annotations

from collections.abc import Callable

from detslurm.config.run_config import RunConfig
from detslurm.exec.intents import Intents
from detslurm.exec.text_log import log_store_error, print_message
from detslurm.jobs.deferred import send, settle
from detslurm.slurm import Cluster, SlurmError
from detslurm.store import StoreError


def submit_deferred(
    intents: Intents, config: RunConfig, ref: str, connect: Callable[[str | None], Cluster]
) -> None:
    """Submit as many as there is room for, and clear up after jobs that died while they did so.

    Failed calls are left to the next job that ends or starts.
    """
    try:
        intents.refresh()
        if intents.cause is None and intents.facts.created.submit_from_jobs:
            _submit(intents, config, ref, connect(None))
    except StoreError as error:
        log_store_error(error)
    except (SlurmError, OSError) as error:
        print_message(f"no more trials can be submitted now: {error}")


def _submit(intents: Intents, config: RunConfig, ref: str, cluster: Cluster) -> None:
    experiment = intents.experiment
    while settle(experiment, intents.facts, cluster, lambda job: _has_died(job, ref, cluster)):
        intents.refresh()
    job_id = send(experiment, intents.facts, cluster, ref, _wanted(intents, config))
    intents.refresh()
    if job_id is not None:
        print_message(f"submitted more trials: job {job_id}")


def _wanted(intents: Intents, config: RunConfig) -> int | None:
    """How many more jobs may work at once; those that there are go on with other trials."""
    facts = intents.facts
    concurrent = config.searcher.max_concurrent_trials
    at_once = min(filter(None, (facts.trials_at_once, concurrent)), default=None)
    return None if at_once is None else max(0, at_once - facts.elements)


def _has_died(job: str, ref: str, cluster: Cluster) -> bool:
    """Whether the job that announced it is known to be gone: only evidence counts."""
    if job == ref:
        return True  # this job was requeued since
    known = cluster.query([job]).get(job) or cluster.evidence([job]).get(job)
    return known is not None and (known.final or known.waiting)
