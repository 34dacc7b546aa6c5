"""The types of what runs write: claims, end records and the records of their logs.

In a shared store another user writes them. Readers rely on these types, and skip what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from detslurm.store.records import Time

MOST_STEPS: Final = (1 << 63) - 1
"""The largest step, as an array of steps holds it."""

Steps = Annotated[int, Meta(ge=-MOST_STEPS, le=MOST_STEPS)]
Size = Annotated[int, Meta(ge=0, le=MOST_STEPS)]


class _Resume(msgspec.Struct):
    uuid: str | None = None
    steps: Steps | None = None


class _Job(msgspec.Struct):
    cluster: str | None = None
    ref: str | None = None
    job_id: str | None = None
    nodes: list[str] | None = None
    restart_count: int | None = None


class _Continued(msgspec.Struct):
    trial: int | None = None
    hparams: dict[str, Any] = {}


class _OutputsClaim(msgspec.Struct):
    uuid: str
    path: str | None = None
    storage: dict[str, Any] | None = None
    copy: str | None = None


class _OutputsLeft(msgspec.Struct):
    uuid: str
    resources: dict[str, Size] = {}
    storage: dict[str, Any] | None = None
    time: Time | None = None


class Hardware(msgspec.Struct, frozen=True):
    """The hardware of a run's first node, as its processes see it.

    Attributes:
        kernel: The version of Linux.
        machine: The architecture, such as "x86_64".
        cpu: The model of the CPU; None if unknown.
        gpus: The number of NVIDIA's GPUs by model; those of the whole node.
        driver: The version of NVIDIA's driver; None without a driver.
        image: The image of the container that the process runs in; None if it knows of none.
    """

    kernel: str = ""
    machine: str = ""
    cpu: str | None = None
    gpus: dict[str, int] = {}
    driver: str | None = None
    image: str | None = None


class RunStart(msgspec.Struct):
    """A run's claim."""

    time: Time | None = None
    host: str | None = None
    hparams: dict[str, Any] | None = None
    seed: int | None = None
    job: _Job | None = None
    resume: _Resume | None = None
    continued: _Continued | None = None
    counted_bytes: dict[Annotated[str, Meta(pattern=r"^\d{1,9}(\.\d{1,9})?$")], Size] | None = None
    fencing_token: Size | None = None
    process: str | None = None
    index: int | None = None
    outputs: _OutputsClaim | None = None
    hardware: Hardware | None = None


class RunEnd(msgspec.Struct):
    """A run's end record."""

    outcome: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    time: Time | None = None
    exclude: list[str] | None = None
    cause: str | None = None
    failure: dict[str, Any] | None = None
    not_staged: dict[str, str] | None = None
    deleted: str | None = None
    outputs: _OutputsLeft | None = None


class _Record(msgspec.Struct):
    time: Time | None = None


class _Metrics(_Record, kw_only=True):
    group: str
    steps: Steps
    metrics: dict[str, Any]
    rank: Size = 0


class _CheckpointStarted(_Record, kw_only=True):
    uuid: str
    storage: dict[str, Any] | None = None


class _Checkpoint(_CheckpointStarted, kw_only=True):
    steps: Steps
    resources: dict[str, Size] | None = None
    digests: dict[str, str] | None = None
    metadata: dict[str, Any] | None = None


class _Storage(_Record, kw_only=True):
    storage: dict[str, Any]


class _Text(_Record):
    text: str | None = None
    reason: str | None = None


class _Alert(_Record):
    level: str = "info"
    title: str | None = None
    description: str | None = None


class _Metadata(_Record):
    data: dict[str, Any] | None = None


_KINDS: dict[str, type[_Record]] = {
    "metrics": _Metrics,
    "checkpoint": _Checkpoint,
    "checkpoint_started": _CheckpointStarted,
    "checkpoint_deleted": _CheckpointStarted,
    "storage": _Storage,
    "status": _Text,
    "early_exit": _Text,
    "non_retryable": _Text,
    "alert": _Alert,
    "run_metadata": _Metadata,
}


def well_formed(record: Mapping[str, Any]) -> bool:
    """Return whether a log's record has the types that folds rely on.

    Args:
        record: The record. Records that folds do not know always pass.
    """
    kind = record.get("t")
    if not isinstance(kind, str):
        return kind is None
    return misfit(record, _KINDS.get(kind, _Record)) is None


def misfit(record: Mapping[str, Any], kind: type[msgspec.Struct]) -> str | None:
    """Return why a record does not have the types of `kind`; None if it has.

    Args:
        record: The record.
        kind: The type that it should have.
    """
    try:
        msgspec.convert(record, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def typed_record(
    record: dict[str, Any], kind: type[msgspec.Struct], path: PurePath
) -> dict[str, Any]:
    """Return a record that has the types of `kind`, else a corrupt record in its place.

    Args:
        record: The record.
        kind: The type that it should have.
        path: The file that it is in.
    """
    problem = misfit(record, kind)
    return record if problem is None else {"type": "corrupt", "problem": problem, "path": str(path)}
