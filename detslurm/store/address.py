"""Where the code of a running task can be reached: one private record for each run.

The task's server writes it with `publish_address`, and commands read it with `current_address`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from detslurm._base import access, contract
from detslurm.store import fs
from detslurm.store.errors import StoreError
from detslurm.store.experiment import ExperimentDir
from detslurm.store.facts import read_record
from detslurm.store.frame import frame
from detslurm.store.trial import TrialDir


class Address(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An address that a run has published.

    Attributes:
        run: The number of the run.
        job: The name of its job, as in the run's claim.
        host: The node, by the name that Slurm has for it.
        port: The TCP port; None for a socket.
        socket: The path of the Unix socket on that node; None for a port.
        token: The secret that clients have to send; None if they need none.
        key: The directory with the keys of an SSH client.
        path: The first part of the paths of its pages; None for "/".
        problem: Why clients of a shell have to do without a port, or without terminals.
    """

    run: int
    job: str
    host: str
    port: int | None = None
    socket: str | None = None
    token: str | None = None
    key: str | None = None
    path: str | None = None
    problem: str | None = None


def publish_address(
    *,
    host: str | None = None,
    port: int | None = None,
    socket: str | None = None,
    token: str | None = None,
    key: str | None = None,
    path: str | None = None,
    problem: str | None = None,
    env: Mapping[str, str] = os.environ,
) -> Address:
    """Publish the address of the task that this process runs in, for its owner alone (mode 0600).

    A later call replaces it. The fields are those of `Address`; `host` is this node by default.
    `env` is the environment of the task's entrypoint (by default this process's). Raises
    `StoreError` outside of a run, or if the record can't be written.

    Example (in the job):
        publish_address(socket="/tmp/detslurm-17/s", token=secrets.token_urlsafe())
    """
    trial, run = _own_run(env)
    claim = trial.start(run, fresh=True)
    address = Address(
        run=run,
        job=claim.job.ref if claim is not None else "",
        host=host or node_name(env),
        port=port,
        socket=socket,
        token=token,
        key=key,
        path=path,
        problem=problem,
    )
    record = {"type": "address", **msgspec.to_builtins(address)}
    fs.replace_file(trial.address_path(run), frame(record), secret=True)
    return address


def node_name(env: Mapping[str, str] = os.environ) -> str:
    """Return Slurm's name of this node, which `srun --nodelist` takes; else its own name."""
    return env.get("SLURMD_NODENAME") or os.uname().nodename


def current_address(trial: TrialDir) -> Address | None:
    """Return the address of the trial's newest run; None if it has published none, or has ended.

    An address of another run or job is never returned. The job may have died:
    `Task.address` asks the queue, too. Raises `StoreError` if a record can't be read, or belongs to
    another user, because it names files and programs that clients use.
    """
    owner = fs.owner_of(trial.experiment_path, follow=False)
    if owner not in (os.geteuid(), *access.UNKNOWN_OWNERS):
        raise StoreError(f"{trial.experiment_id} belongs to another user, who alone may open it")
    runs = trial.runs()
    if not runs or runs[-1].end is not None:
        return None
    newest = runs[-1]
    record = read_record(trial.address_path(newest.number), expected=True)
    if record is None or record.get("type") != "address":
        return None
    try:
        address = msgspec.convert(record, Address)
    except msgspec.ValidationError as error:
        raise StoreError(f"{trial.address_path(newest.number)}: {error}") from error
    same = (address.run, address.job) == (newest.number, newest.start.job.ref)
    return address if same else None


def _own_run(env: Mapping[str, str]) -> tuple[TrialDir, int]:
    try:
        experiment = ExperimentDir.at(Path(env[contract.EXPERIMENT_DIR]))
        return experiment.trial(int(env[contract.TRIAL_ID])), int(env[contract.TRIAL_RUN_ID])
    except KeyError as missing:
        raise StoreError(f"this process belongs to no run: {missing.args[0]} is not set") from None
