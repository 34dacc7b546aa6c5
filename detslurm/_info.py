"""What a process of a trial knows of its cluster, its trial and its peers.

Names and meaning follow Determined's `ClusterInfo`; the values come from the environment that the
node agent sets.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._process import fatal_error

if TYPE_CHECKING:
    from detslurm.exec.unmanaged_job import UnmanagedJob


_REQUIRED = (
    "DET_MASTER",
    "DET_CLUSTER_ID",
    "DET_AGENT_ID",
    "DET_SLOT_IDS",
    "DET_TASK_ID",
    "DET_ALLOCATION_ID",
    "DET_SESSION_TOKEN",
    "DET_TASK_TYPE",
)

EXPERIMENT_DIR_ENV = "DETSLURM_EXPERIMENT_DIR"
JOB_ENV = "DETSLURM_JOB"
"""The job that the environment was made for; sbatch hands it on to jobs submitted from inside."""

_LOCAL_JOB = tuple(f"DETSLURM_LOCAL_{name}" for name in ("TAG", "JOB_ID", "TASK_ID"))

OF_A_RUN = ("DET_", "DETSLURM_PREEMPT", JOB_ENV)
"""How the variables begin that would give a process another run's identity."""


@dataclass(frozen=True)
class RendezvousInfo:
    """Where the nodes of this run are.

    Attributes:
        container_addrs: One address for each node, in the order of ranks.
        container_rank: This node's index among them.
        container_slot_counts: The number of slots on each node.
    """

    container_addrs: list[str]
    container_rank: int
    container_slot_counts: list[int]


@dataclass(frozen=True)
class ResourcesInfo:
    """What this node has for this run.

    Attributes:
        gpu_uuids: The UUIDs of this node's GPUs.
    """

    gpu_uuids: list[str]


@dataclass(frozen=True, init=False)
class TrialInfo:
    """The trial that this process works for.

    Attributes:
        trial_id: The trial's id.
        experiment_id: The experiment's id.
        trial_seed: The seed of this trial, the same in all its runs.
        hparams: The trial's hyperparameters by name.
    """

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    _config: dict[str, Any] = field(repr=False)
    _steps_completed: int
    _trial_run_id: int
    _debug: bool
    _inter_node_network_interface: str | None

    def __init__(
        self,
        trial_id: int,
        experiment_id: int,
        trial_seed: int,
        hparams: dict[str, Any],
        config: dict[str, Any],
        steps_completed: int,
        trial_run_id: int,
        debug: bool = False,
        inter_node_network_interface: str | None = None,
    ) -> None:
        # Frozen: what is set, is set past the class's own __setattr__.
        vars(self).update(
            trial_id=trial_id,
            experiment_id=experiment_id,
            trial_seed=trial_seed,
            hparams=hparams,
            _config=config,
            _steps_completed=steps_completed,
            _trial_run_id=trial_run_id,
            _debug=debug,
            _inter_node_network_interface=inter_node_network_interface,
        )

    @classmethod
    def _from_environment(cls, env: Mapping[str, str]) -> TrialInfo:
        return cls(
            trial_id=int(env["DET_TRIAL_ID"]),
            experiment_id=int(env["DET_EXPERIMENT_ID"]),
            trial_seed=int(env["DET_TRIAL_SEED"]),
            hparams=json.loads(env["DET_HPARAMS"]),
            config=_experiment_config(env),
            steps_completed=int(env["DET_STEPS_COMPLETED"]),
            trial_run_id=int(env["DET_TRIAL_RUN_ID"]),
            debug=env.get("DET_DEBUG") == "true",
            inter_node_network_interface=env.get("DET_INTER_NODE_NETWORK_INTERFACE"),
        )


def _experiment_config(env: Mapping[str, str]) -> dict[str, Any]:
    # Linux limits one environment string to 128 KiB: a larger configuration is left in the store.
    text = env.get("DET_EXPERIMENT_CONFIG")
    if text is None:
        from detslurm.store.frame import decode_json

        config = decode_json((Path(env[EXPERIMENT_DIR_ENV]) / "config.json").read_bytes())
    else:
        config = json.loads(text)
    assert isinstance(config, dict)
    return config


@dataclass(frozen=True, init=False)
class ClusterInfo:
    """Everything that is known of the task that this process belongs to.

    Attributes:
        master_url: The store, as a `file://` URL.
        cluster_id: The name of the cluster.
        agent_id: The name of this node.
        slot_ids: The indexes of this node's slots.
        task_id: The id of the trial's task.
        allocation_id: The id of this run.
        session_token: Empty: there is no server.
        task_type: "TRIAL" for the processes of a trial.
        master_cert_name: None: there is no server.
        master_cert_file: None: there is no server.
    """

    master_url: str
    cluster_id: str
    agent_id: str
    slot_ids: list[int]
    task_id: str
    allocation_id: str
    session_token: str
    task_type: str
    master_cert_name: str | None
    master_cert_file: str | None
    _latest_checkpoint: str | None
    _trial_info: TrialInfo | None
    _rendezvous_info: RendezvousInfo | None
    _resources_info: ResourcesInfo | None

    def __init__(
        self,
        master_url: str,
        cluster_id: str,
        agent_id: str,
        slot_ids: list[int],
        task_id: str,
        allocation_id: str,
        session_token: str,
        task_type: str,
        master_cert_name: str | None = None,
        master_cert_file: str | None = None,
        latest_checkpoint: str | None = None,
        trial_info: TrialInfo | None = None,
        rendezvous_info: RendezvousInfo | None = None,
        resources_info: ResourcesInfo | None = None,
    ) -> None:
        vars(self).update(
            master_url=master_url,
            cluster_id=cluster_id,
            agent_id=agent_id,
            slot_ids=slot_ids,
            task_id=task_id,
            allocation_id=allocation_id,
            session_token=session_token,
            task_type=task_type,
            master_cert_name=master_cert_name,
            master_cert_file=master_cert_file,
            _latest_checkpoint=latest_checkpoint,
            _trial_info=trial_info,
            _rendezvous_info=rendezvous_info,
            _resources_info=resources_info,
        )

    @classmethod
    def _from_environment(cls, env: Mapping[str, str]) -> ClusterInfo | None:
        if "DET_MASTER" not in env:
            return None
        missing = [name for name in _REQUIRED if name not in env]
        if missing:
            raise RuntimeError(
                f"this looks like a detslurm job, but the environment lacks {', '.join(missing)}; "
                "a script or container between the job and this process must pass DET_* on"
            )
        rendezvous = env.get("DETSLURM_RENDEZVOUS")
        return cls(
            master_url=env["DET_MASTER"],
            cluster_id=env["DET_CLUSTER_ID"],
            agent_id=env["DET_AGENT_ID"],
            slot_ids=json.loads(env["DET_SLOT_IDS"]),
            task_id=env["DET_TASK_ID"],
            allocation_id=env["DET_ALLOCATION_ID"],
            session_token=env["DET_SESSION_TOKEN"],
            task_type=env["DET_TASK_TYPE"],
            master_cert_name=env.get("DET_MASTER_CERT_NAME"),
            master_cert_file=env.get("DET_MASTER_CERT_FILE"),
            latest_checkpoint=env.get("DET_LATEST_CHECKPOINT"),
            trial_info=(
                TrialInfo._from_environment(env) if env["DET_TASK_TYPE"] == "TRIAL" else None
            ),
            rendezvous_info=RendezvousInfo(**json.loads(rendezvous)) if rendezvous else None,
            resources_info=ResourcesInfo(json.loads(env.get("DETSLURM_GPU_UUIDS", "[]"))),
        )

    @property
    def trial(self) -> TrialInfo:
        """The trial of this task.

        Raises:
            RuntimeError: If this task is not a trial.
        """
        if self._trial_info is None:
            raise RuntimeError(f"this task is of type {self.task_type}: it has no trial")
        return self._trial_info

    @property
    def latest_checkpoint(self) -> str | None:
        """The storage id of the checkpoint to resume from, or None to start from the beginning."""
        return self._latest_checkpoint if self.task_type == "TRIAL" else None

    @property
    def user_data(self) -> dict[str, Any]:
        """The `data` section of the experiment's configuration."""
        if self._trial_info is None:
            return {}
        data: dict[str, Any] = self._trial_info._config.get("data") or {}
        return data

    @property
    def gpu_uuids(self) -> list[str]:
        """The UUIDs of this node's GPUs."""
        return self._resources_info.gpu_uuids if self._resources_info else []

    @property
    def _rendezvous(self) -> RendezvousInfo:
        assert self._rendezvous_info is not None, "rendezvous did not run for this task"
        return self._rendezvous_info

    @property
    def container_addrs(self) -> list[str]:
        """One address for each node, in the order of ranks."""
        return self._rendezvous.container_addrs

    @property
    def container_slot_counts(self) -> list[int]:
        """The number of slots on each node, in the order of ranks."""
        return self._rendezvous.container_slot_counts

    @property
    def container_rank(self) -> int:
        """This node's index among `container_addrs`."""
        return self._rendezvous.container_rank


def job_of(env: Mapping[str, str]) -> str | None:
    """The job that an environment is of, Slurm's or the local cluster's; None outside of jobs."""
    local = [env.get(name, "") for name in _LOCAL_JOB]
    return ".".join(local) if local[1] else env.get("SLURM_JOB_ID")


def in_run(env: MutableMapping[str, str]) -> bool:
    """Whether the environment is a run's; what was inherited from another job's run goes."""
    job = env.get(JOB_ENV)
    if job is not None and job_of(env) not in (None, job):
        for name in [name for name in env if name.startswith(OF_A_RUN)]:
            del env[name]
    return "DET_MASTER" in env


_info: ClusterInfo | None = None
_unmanaged_job: UnmanagedJob | None = None


def get_cluster_info() -> ClusterInfo | None:
    """The task that this process belongs to, or None outside of jobs.

    In a job that was not submitted through detslurm the first call makes it one: an experiment that
    the job's requeues continue, unless DETSLURM_TRACK=0.
    """
    global _info
    if _info is None:
        if not in_run(os.environ) and "SLURM_JOB_ID" in os.environ:
            _join()
        _info = ClusterInfo._from_environment(os.environ)
    return _info


def _join() -> None:
    global _unmanaged_job
    from detslurm.exec.unmanaged_job import join
    from detslurm.store import StoreError

    try:
        _unmanaged_job = join()
    except (StoreError, OSError) as err:
        import logging  # only here: node agents start without its half dozen imports

        logger = logging.getLogger("detslurm.core")
        logger.warning("this run is not recorded: the store can't be used (%s)", err)
        return
    if _unmanaged_job is not None:
        os.environ.update(_unmanaged_job.environment())
        _unmanaged_job.watch_signals()
        atexit.register(_close_at_exit, _unmanaged_job)


def _close_at_exit(unmanaged: UnmanagedJob) -> None:
    """End the run of a script that never called `core.init()`; after that the first word stands."""
    error = fatal_error()
    unmanaged.close("completed" if error is None else "error", repr(error))


def on_close() -> Callable[[str, str], None] | None:
    """Who wants to hear how this process's training ended, beside the store."""
    return None if _unmanaged_job is None else _unmanaged_job.close
