"""The environment of the processes of a run on one node: `DET_*` and what config asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm._base import contract
from detslurm.compat import with_determined
from detslurm.config.run_config import RunConfig
from detslurm.store.frame import encode_json, has_mark
from detslurm.store.run_records import StartRecord


def run_environment(
    *,
    base: Mapping[str, str],
    config: RunConfig,
    start: StartRecord,
    experiment_dir: Path,
    node: str,
    slot_ids: Sequence[int],
    gpus: Sequence[str],
    peers: Mapping[str, Any],
    flag: str,
) -> dict[str, str]:
    """Every variable for the entrypoint, from the run's start record.

    `gpus` are the allocation's on this node; without any the slots are CPUs.
    The user's own `environment_variables` come last but can't replace what detslurm itself needs.
    Raises `ValueError` for a `DETSLURM_COMPAT` that doesn't exist.
    """
    variables = user_variables(config, gpus)
    ours = {
        **_of_trial(start, experiment_dir, config.hyperparameters),
        **_of_node(node, slot_ids, gpus, peers),
        **_of_configuration(config, variables),
        contract.SESSION_TOKEN: "",
        contract.TASK_TYPE: "TRIAL",
        contract.RESOURCES_TYPE: "slurm-job",
        contract.PREEMPT_FLAG: flag,
        # A rank's output must reach the log at once, not at the end.
        "PYTHONUNBUFFERED": "1",
    }
    if job := contract.job_of(base):
        ours[contract.JOB] = job
    slots = peers["container_slot_counts"]
    others = contract.for_code(base, is_rank=len(slots) > 1 and set(slots) == {1})
    launching = _of_launchers(peers, ours[contract.ALLOCATION_ID])
    return with_determined({**others, **launching, **variables, **ours})


def _of_trial(start: StartRecord, experiment_dir: Path, space: Mapping[str, Any]) -> dict[str, str]:
    """The identity of this run, and its start."""
    task, allocation = contract.task_and_allocation(
        start.experiment, start.trial, start.run, start.request_id
    )
    found = {
        contract.MASTER: f"file://{experiment_dir.parent.parent}",
        contract.CLUSTER_ID: start.job.cluster,
        contract.TASK_ID: task,
        contract.ALLOCATION_ID: allocation,
        contract.TRIAL_ID: str(start.trial),
        contract.EXPERIMENT_ID: str(start.experiment),
        contract.TRIAL_SEED: str(start.seed),
        contract.TRIAL_RUN_ID: str(start.run),
        contract.HPARAMS: _hparams(start.hparams or {}, space),
        contract.STEPS_COMPLETED: str(start.resumed.steps),
        contract.EXPERIMENT_DIR: str(experiment_dir),
    }
    if start.resumed.uuid:
        found[contract.LATEST_CHECKPOINT] = start.resumed.uuid
    if (continued := start.continued) is not None:
        found[contract.CONTINUED_TRIAL] = str(continued.saved_by)
        same = continued.hparams == start.hparams
        found[contract.HPARAMS_CHANGED] = "false" if same else "true"
    return found


def _hparams(recorded: Mapping[str, Any], space: Mapping[str, Any]) -> str:
    """The hyperparameters, whose length was checked at the submission, with their secrets."""
    text = _json(recorded)
    return _json(with_secrets(recorded, space)) if "****" in text else text


def with_secrets(recorded: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters with the secrets that the run's record has not."""
    from detslurm.config.secret_values import restored_sample  # only here: others pay nothing

    return restored_sample(recorded, space)


def _of_node(
    node: str, slot_ids: Sequence[int], gpus: Sequence[str], peers: Mapping[str, Any]
) -> dict[str, str]:
    """This node, its slots, and the other nodes."""
    meeting = {"container_addrs", "container_rank", "container_slot_counts"}
    found = {
        contract.AGENT_ID: node,
        contract.SLOT_IDS: _json(list(slot_ids)),
        contract.UNIQUE_PORT_OFFSET: str(min(slot_ids, default=0)),
        contract.GPU_UUIDS: _json([gpu for gpu in gpus if not gpu.isdigit()]),
        contract.RENDEZVOUS: _json({k: v for k, v in peers.items() if k in meeting}),
    }
    if "port" in peers:
        found[contract.RENDEZVOUS_PORT] = str(peers["port"])
    if "token" in peers:
        found[contract.RUN_TOKEN] = peers["token"]
    return found


def _of_launchers(peers: Mapping[str, Any], run: str) -> dict[str, str]:
    """The nodes and a port of the run, under the names that other projects' launchers read."""
    addrs, rank = peers["container_addrs"], str(peers["container_rank"])
    found = {"MASTER_ADDR": addrs[0], "NODE_RANK": rank, "PET_RDZV_ID": run}
    if "port" in peers:
        found |= dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), str(peers["port"]))
    if len(addrs) > 1:
        found |= {"PET_NNODES": str(len(addrs)), "PET_NODE_RANK": rank}
        found |= {"PET_MASTER_ADDR": addrs[0]}
    return found


def _of_configuration(config: RunConfig, variables: Mapping[str, str]) -> dict[str, str]:
    """The experiment's configuration, as far as code asks for it."""
    found = {contract.DEBUG: "true" if config.debug else "false"}
    text = _json(config.plain)
    if len(text) < contract.LONGEST_VALUE:
        found[contract.EXPERIMENT_CONFIG] = text
    interface = interface_of(config, variables)
    if interface:
        found[contract.INTERFACE] = interface
    return found


def interface_of(config: RunConfig, env: Mapping[str, str]) -> str | None:
    """The interface that was asked for: by the variable, else by `slurm.network_interface`."""
    return env.get(contract.INTERFACE) or config.slurm.network_interface


def user_variables(config: RunConfig, gpus: Sequence[str]) -> dict[str, str]:
    """The variables that the configuration asks for, on slots of its type, or of the allocation's
    where it names none: GPUs if it was given some."""
    variables = config.environment.environment_variables.get(slot_type_of(config, gpus), ())
    return dict(map(_assignment, variables))


def slot_type_of(config: RunConfig, gpus: Sequence[str]) -> str:
    """The kind of the slots: `cuda`, `rocm` or `cpu`."""
    return config.slurm.slot_type or ("cuda" if gpus else "cpu")


def is_contained(config: RunConfig, gpus: Sequence[str]) -> bool:
    """Whether the code has a container of its own."""
    prefix, image = config.slurm.container_prefix, config.image(slot_type_of(config, gpus))
    return bool(prefix or image)


def _assignment(item: str) -> tuple[str, str]:
    # `NAME` alone takes the value of the submitting shell, as with `docker run -e`.
    name, equals, value = item.partition("=")
    return (name, value) if equals else (name, os.environ.get(name, ""))


def _json(value: Any) -> str:
    """JSON in ASCII, which has no other form in any locale, with NaN as Python writes it."""
    raw = encode_json(value)
    if raw.isascii() and not has_mark(raw):
        return raw.decode()
    import json  # only here: most nodes start without it

    return json.dumps(value)


def with_commands_in(folder: str, env: Mapping[str, str]) -> dict[str, str]:
    """The same with this directory first in PATH, if it is not there at all."""
    path = env.get("PATH", os.defpath)
    if folder in path.split(os.pathsep):
        return dict(env)
    return {**env, "PATH": f"{folder}{os.pathsep}{path}"}
