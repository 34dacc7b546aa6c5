"""A trial process's knowledge of its cluster, its trial and its peers.

Names and meaning follow Determined's `ClusterInfo`; the values come from the environment that the
node agent sets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detslurm._base import contract

_REQUIRED = (
    contract.MASTER,
    contract.CLUSTER_ID,
    contract.AGENT_ID,
    contract.SLOT_IDS,
    contract.TASK_ID,
    contract.ALLOCATION_ID,
    contract.SESSION_TOKEN,
    contract.TASK_TYPE,
)


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
    """This node's resources for this run.

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
        continues: The id of the trial of another experiment that saved the checkpoint from which
            this one goes on counting (`experiment continue`), else None.
    """

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    continues: int | None
    _hparams_changed: bool
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
        continues: int | None = None,
        hparams_changed: bool = False,
    ) -> None:
        # Frozen: attributes are set past the class's own __setattr__.
        vars(self).update(
            trial_id=trial_id,
            experiment_id=experiment_id,
            trial_seed=trial_seed,
            hparams=hparams,
            continues=continues,
            _hparams_changed=hparams_changed,
            _config=config,
            _steps_completed=steps_completed,
            _trial_run_id=trial_run_id,
            _debug=debug,
            _inter_node_network_interface=inter_node_network_interface,
        )

    @classmethod
    def _from_environment(cls, env: Mapping[str, str]) -> TrialInfo:
        return cls(
            trial_id=int(env[contract.TRIAL_ID]),
            experiment_id=int(env[contract.EXPERIMENT_ID]),
            trial_seed=int(env[contract.TRIAL_SEED]),
            hparams=json.loads(env[contract.HPARAMS]),
            config=_experiment_config(env),
            steps_completed=int(env[contract.STEPS_COMPLETED]),
            trial_run_id=int(env[contract.TRIAL_RUN_ID]),
            debug=env.get(contract.DEBUG) == "true",
            inter_node_network_interface=env.get(contract.INTERFACE),
            continues=int(continued) if (continued := env.get(contract.CONTINUED_TRIAL)) else None,
            hparams_changed=env.get(contract.HPARAMS_CHANGED) == "true",
        )


def _experiment_config(env: Mapping[str, str]) -> dict[str, Any]:
    # Linux limits one environment string to 128 KiB: a larger configuration is left in the store.
    text = env.get(contract.EXPERIMENT_CONFIG)
    if text is None:
        from detslurm.store import ExperimentDir

        return ExperimentDir.at(Path(env[contract.EXPERIMENT_DIR])).config()
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
        if contract.MASTER not in env:
            return None
        missing = [name for name in _REQUIRED if name not in env]
        if missing:
            raise RuntimeError(
                f"this looks like a detslurm job, but the environment lacks {', '.join(missing)}; "
                "a script or container between the job and this process must pass DET_* on"
            )
        rendezvous = env.get(contract.RENDEZVOUS)
        return cls(
            master_url=env[contract.MASTER],
            cluster_id=env[contract.CLUSTER_ID],
            agent_id=env[contract.AGENT_ID],
            slot_ids=json.loads(env[contract.SLOT_IDS]),
            task_id=env[contract.TASK_ID],
            allocation_id=env[contract.ALLOCATION_ID],
            session_token=env[contract.SESSION_TOKEN],
            task_type=env[contract.TASK_TYPE],
            master_cert_name=env.get(contract.MASTER_CERT_NAME),
            master_cert_file=env.get(contract.MASTER_CERT_FILE),
            latest_checkpoint=env.get(contract.LATEST_CHECKPOINT),
            trial_info=(
                TrialInfo._from_environment(env) if env[contract.TASK_TYPE] == "TRIAL" else None
            ),
            rendezvous_info=RendezvousInfo(**json.loads(rendezvous)) if rendezvous else None,
            resources_info=ResourcesInfo(json.loads(env.get(contract.GPU_UUIDS, "[]"))),
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


_info: ClusterInfo | None = None


def get_cluster_info() -> ClusterInfo | None:
    """The task that this process belongs to, as its environment describes it.

    In a batch script of your own there is one after `core.init()` or `detslurm.join_job()`, and in
    the workers of a launcher.

    Returns:
        The task, or None outside of jobs.

    Raises:
        RuntimeError: If a script or container has passed on only some of the variables.
    """
    global _info
    if _info is None and not contract.is_inherited(os.environ):
        _info = ClusterInfo._from_environment(os.environ)
    return _info
