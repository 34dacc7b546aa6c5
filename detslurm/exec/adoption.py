"""Go on with a trial whose runner died: a runner that has done its own share does it.

Only evidence counts: the job of the trial ended without a request to end it, and the trial's end
was not recorded. Trials are left alone if Slurm does not report their job, or if their job was
canceled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from detslurm._base.states import LOST, TERMINAL
from detslurm.exec.intents import Intents
from detslurm.jobs.resubmit import submitted_fact, successor_request
from detslurm.slurm import Cluster, SlurmError
from detslurm.store import ExperimentFacts, Job, Run

DIED = frozenset({"BOOT_FAIL", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"})
"""How a job ends that could not do its work; not what its user or a preemption ended."""


def adopt(
    intents: Intents, index: int, ref: str, cluster: Callable[[str | None], Cluster], *, most: int
) -> bool:
    """Make job `ref` work for a trial whose own job died; whether it is now.

    A trial that was lost more than `most` times may be what its runners die of.
    """
    experiment = intents.experiment
    runs = experiment.trial(intents.facts.trial_id(index)).runs()
    facts = list(experiment.facts())
    folded = ExperimentFacts().fold(facts)
    origin = folded.origin.get(index, index)
    job = _newest(folded, origin)
    if (
        job is None
        or not _may_go_on(runs, job, most)
        or not _has_died(job, origin, folded, cluster)
    ):
        return False
    request = successor_request(facts, experiment, origin)
    left = job.each - (origin - job.first_index) % job.each  # what the job would have run after it
    fact = submitted_fact(job.cluster, ref, origin, request, each=left)
    fact["jobs"][0]["adopted"] = True
    return experiment.append_next(fact, facts[-1]["n"])


def _newest(facts: ExperimentFacts, index: int) -> Job | None:
    covers = (job for job in reversed(facts.jobs) if 0 <= index - job.first_index < job.count)
    return next(covers, None)


def _may_go_on(runs: Sequence[Run], job: Job, most: int) -> bool:
    """Whether it is worth a try: not if its job could not even begin it."""
    outcomes = [run.outcome or LOST for run in runs]
    over = any(outcome in TERMINAL for outcome in outcomes)
    begun = bool(runs) or job.adopted  # what a job took over may never have begun
    return begun and not over and outcomes.count(LOST) <= most


def _has_died(
    job: Job, index: int, facts: ExperimentFacts, cluster: Callable[[str | None], Cluster]
) -> bool:
    ref = job.refs[(index - job.first_index) // job.each]
    try:
        queue = cluster(job.cluster)
        known = queue.query([ref]).get(ref)
        if known is None:
            known = queue.evidence([ref], since=facts.created.time).get(ref)
    except SlurmError:
        return False
    return known is not None and known.state in DIED
