"""The environment of the processes of a run on one node: `DET_*` and what config asks for."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm._addresses import INTERFACE_ENV, interface_of
from detslurm._flag import ENV as FLAG_ENV
from detslurm._identity import TOKEN_ENV
from detslurm._info import EXPERIMENT_DIR_ENV, JOB_ENV, OF_A_RUN, job_of
from detslurm.compat import with_determined

PORT_ENV = "DETSLURM_MEETING_PORT"
"""A port of the first node that is this run's alone, where a run has several nodes."""

# Linux refuses an exec with one string of 128 KiB or more (MAX_ARG_STRLEN).
_LONGEST_VALUE = 120 * 1024


def run_environment(
    *,
    base: Mapping[str, str],
    config: Mapping[str, Any],
    start: Mapping[str, Any],
    experiment_dir: Path,
    node: str,
    slot_ids: Sequence[int],
    gpu_uuids: Sequence[str],
    peers: Mapping[str, Any],
    flag: str,
) -> dict[str, str]:
    """Every variable for the entrypoint, from the run's start record.

    The user's own `environment_variables` come last but can't replace what detslurm itself needs.
    Raises `ValueError` for a `DETSLURM_COMPAT` that doesn't exist.
    """
    variables = user_variables(config)
    ours = {
        **_of_trial(start, experiment_dir),
        **_of_node(node, slot_ids, gpu_uuids, peers),
        **_of_configuration(config, variables),
        "DET_SESSION_TOKEN": "",
        "DET_TASK_TYPE": "TRIAL",
        "DET_RESOURCES_TYPE": "slurm-job",
        FLAG_ENV: flag,
        # What a rank prints must reach the log at once, not at the end.
        "PYTHONUNBUFFERED": "1",
    }
    if job := job_of(base):
        ours[JOB_ENV] = job
    return with_determined({**_without_ours(base), **variables, **ours})


def _of_trial(start: Mapping[str, Any], experiment_dir: Path) -> dict[str, str]:
    """Which run this is, and what it starts from."""
    resume = start.get("resume") or {}
    task = f"{start['experiment']}.{start.get('request_id', start['trial'])}"
    found = {
        "DET_MASTER": f"file://{experiment_dir.parent.parent}",
        "DET_CLUSTER_ID": str(start["job"].get("cluster", "")),
        "DET_TASK_ID": task,
        "DET_ALLOCATION_ID": f"{task}.{start['run']}",
        "DET_TRIAL_ID": str(start["trial"]),
        "DET_EXPERIMENT_ID": str(start["experiment"]),
        "DET_TRIAL_SEED": str(start["seed"]),
        "DET_TRIAL_RUN_ID": str(start["run"]),
        "DET_HPARAMS": json.dumps(start["hparams"]),
        "DET_STEPS_COMPLETED": str(resume.get("steps", 0)),
        EXPERIMENT_DIR_ENV: str(experiment_dir),
    }
    if resume.get("uuid"):
        found["DET_LATEST_CHECKPOINT"] = resume["uuid"]
    return found


def _of_node(
    node: str, slot_ids: Sequence[int], gpu_uuids: Sequence[str], peers: Mapping[str, Any]
) -> dict[str, str]:
    """This node, its slots, and the other nodes."""
    meeting = {"container_addrs", "container_rank", "container_slot_counts"}
    found = {
        "DET_AGENT_ID": node,
        "DET_SLOT_IDS": json.dumps(list(slot_ids)),
        "DET_UNIQUE_PORT_OFFSET": str(min(slot_ids, default=0)),
        "DETSLURM_GPU_UUIDS": json.dumps(list(gpu_uuids)),
        "DETSLURM_RENDEZVOUS": json.dumps({k: v for k, v in peers.items() if k in meeting}),
    }
    if "port" in peers:
        found[PORT_ENV] = str(peers["port"])
    if "token" in peers:
        found[TOKEN_ENV] = peers["token"]
    return found


def _of_configuration(config: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    """The experiment's configuration, as far as code asks for it."""
    found = {"DET_DEBUG": "true" if config.get("debug") else "false"}
    text = json.dumps(config)
    if len(text) < _LONGEST_VALUE:
        found["DET_EXPERIMENT_CONFIG"] = text
    interface = interface_of(config, variables)
    if interface:
        found[INTERFACE_ENV] = interface
    return found


def _without_ours(base: Mapping[str, str]) -> dict[str, str]:
    # A job submitted from inside another job must not inherit that one's identity.
    return {k: v for k, v in base.items() if not k.startswith(OF_A_RUN)}


def user_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """The variables that the configuration asks for."""
    variables = (config.get("environment") or {}).get("environment_variables") or []
    if isinstance(variables, Mapping):
        slot_type = (config.get("slurm") or {}).get("slot_type") or "cuda"
        variables = variables.get(slot_type) or []
    return dict(_assignment(item) for item in variables)


def _assignment(item: str) -> tuple[str, str]:
    # `NAME` alone takes the value of the submitting shell, as with `docker run -e`.
    name, equals, value = item.partition("=")
    return (name, value) if equals else (name, os.environ.get(name, ""))


def python_first(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with this Python's directory in PATH, if it is not there at all."""
    here = str(Path(sys.executable).parent)
    path = env.get("PATH", os.defpath)
    if here in path.split(os.pathsep):
        return dict(env)
    return {**env, "PATH": f"{here}{os.pathsep}{path}"}
