"""The job that a runner works in, and its claim of the next run of a trial."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from detslurm.config.run_config import RunConfig
from detslurm.config.secret_values import masked_sample
from detslurm.exec.environment import slot_type_of
from detslurm.exec.hardware import hardware
from detslurm.exec.intents import Intents
from detslurm.exec.signals import SignalInbox
from detslurm.exec.steps import Steps
from detslurm.exec.trial_queue import QueuedTrial
from detslurm.slurm import SIGNAL_EARLY, Allocation
from detslurm.store import TrialDir, TrialView

if TYPE_CHECKING:
    from detslurm.exec.notices import JobNotices
    from detslurm.slurm import Cluster, JobInfo
    from detslurm.store.run_records import Continued, StartRecord


class JobContext(NamedTuple):
    """The parts that all runs in a job share; `end_reason` reads Slurm's line about its end."""

    intents: Intents
    config: RunConfig
    allocation: Allocation
    cluster: Callable[[], Cluster]
    inbox: SignalInbox
    end_reason: Callable[[], str | None]
    steps: Steps

    def own_job(self) -> JobInfo | None:
        """This job in the queue; None where that does not know it. Raises `SlurmError`."""
        return self.cluster().query([self.allocation.ref]).get(self.allocation.ref)

    def notices(self) -> JobNotices:
        """The notices that this job raises and sends."""
        from detslurm.exec.notices import notices_of  # only here: a runner starts without it

        return notices_of(self.intents, self.config.webhooks)

    def is_limit_near(self, seconds_left: float | None) -> bool:
        """Whether Slurm's signal before the time limit is due or has come."""
        lead = self.intents.facts.created.signal_lead + SIGNAL_EARLY
        return seconds_left is not None and seconds_left <= lead


def claim_run(job: JobContext, trial: TrialDir, task: QueuedTrial, view: TrialView) -> StartRecord:
    """Make the next run ours, which fences all earlier ones; `view` is the trial before it.

    Raises `TrialEnded` or `RunTaken` where that is not ours to do.
    """
    created, experiment = job.intents.facts.created, job.intents.experiment
    plan, token, continued = task.plan, task.fencing_token, _continued(job, trial)
    record = {
        "trial": trial.id,
        "experiment": trial.experiment_id,
        "index": task.index,
        "request_id": plan.request_id,
        "hparams": masked_sample(plan.hparams, job.config.hyperparameters),
        "seed": plan.seed if continued is None else continued.seed,
        "job": job.allocation.record(),
        "host": os.uname().nodename,
        "time": time.time(),
        "resume": _resume(job, task, view.latest_checkpoint or continued),
        "hardware": {**hardware(), **_image(job)},
    }
    if created.environment is not None:
        # The nodes stage it; their agents don't read the experiment's facts.
        staged = created.environment.in_store(experiment.store.path)
        record["environment"] = msgspec.to_builtins(staged)
    if continued is not None:
        record["continued"] = continued.as_claimed()
    if job.config.outputs is not None:
        from detslurm.exec.outputs_record import outputs_claim  # only here: others pay nothing

        copy = created.source_outputs if continued is None else continued.outputs
        record["outputs"] = outputs_claim(job.config.checkpoint_storage, trial, copy)
    if token is not None:
        record["fencing_token"] = token
    return trial.open_run(record)


def _image(job: JobContext) -> dict[str, str]:
    """The image of the code's container, where the configuration has one."""
    slurm = job.config.slurm
    image = job.config.image(slot_type_of(job.config, job.allocation.slot_ids))
    if image is None:
        return {}
    # Only here: others pay nothing.
    from detslurm.exec.container_image import image_identity, image_path

    path = image_path(image, slurm.container, slurm.image_root)
    return {"image": image_identity(path, slurm.container)}


def _continued(job: JobContext, trial: TrialDir) -> Continued | None:
    """Where the trial begins if it continues a trial of another experiment."""
    if job.intents.facts.created.origin != "continue":
        return None
    from detslurm.store import read_continued  # only here: others start without it

    return read_continued(trial)


def _resume(job: JobContext, task: QueuedTrial, latest: Any) -> dict[str, Any] | None:
    if latest is not None and latest.uuid is not None:
        return {"uuid": latest.uuid, "steps": latest.steps}
    if task.source is not None:
        return {"uuid": task.source, "steps": task.source_steps}
    # A warm start loads another trial's weights and starts counting from 0.
    configured = job.config.searcher.source_checkpoint_uuid
    source = job.intents.facts.created.source_checkpoint or configured
    if job.intents.facts.created.source_outputs is not None:
        return None  # the outputs begin with a copy of it
    return {"uuid": source, "steps": 0} if source else None
