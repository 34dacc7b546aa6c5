"""The types of what runs write: claims, end records and the records of their logs.

In a shared store another user writes them. Readers rely on these types, and skip what differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

MOST_STEPS: Final = (1 << 63) - 1
"""The largest step, as an array of steps holds it."""

# Another user of a shared store may write any number, and readers make ranges and dates of them.
Time = Annotated[float, Meta(ge=0, le=253_402_300_799)]  # up to the year 9999
Seconds = Annotated[float, Meta(ge=0, le=1e10)]
Steps = Annotated[int, Meta(ge=-MOST_STEPS, le=MOST_STEPS)]
Size = Annotated[int, Meta(ge=0, le=MOST_STEPS)]


class ResumeRecord(msgspec.Struct, frozen=True):
    """The checkpoint that a run begins with."""

    uuid: str | None = None
    steps: Steps = 0


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a run is in, or the process of a script that no job runs.

    Attributes:
        cluster: The name of the cluster; "none" for a process outside of jobs.
        ref: The name of the element or job there.
        job_id: The id of the job.
        array_job_id: The id of its array; None outside of arrays.
        array_task_id: Its index in the array.
        restart_count: How often Slurm had restarted it.
        nodes: Its nodes, by rank.
        started: When it started, or was started again, by Slurm's clock in seconds since 1970; None
            if unknown.
        step: Its step, in an unmanaged job; None elsewhere.
    """

    cluster: str = ""
    ref: str = ""
    job_id: str | None = None
    array_job_id: str | None = None
    array_task_id: int | None = None
    restart_count: int = 0
    nodes: tuple[str, ...] = ()
    started: Time | None = None
    step: str | None = None


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """Where a trial begins that continues another trial."""

    experiment: int  # the experiment of the trial that it continues
    trial: int  # that trial
    # The trial that saved the checkpoint: that trial, or a trial that it had continued.
    saved_by: int
    uuid: str | None  # the checkpoint; None where it has none, but outputs
    steps: int  # how many batches are trained in it
    seed: int
    hparams: dict[str, Any]
    # The directory of its outputs, if it had any: the trial begins with a copy of it.
    outputs: str | None = None

    def as_claimed(self) -> dict[str, Any]:
        """The record of the history in a run's claim."""
        return msgspec.to_builtins(self, str_keys=True)  # type: ignore[no-any-return]


class OutputsClaim(msgspec.Struct, frozen=True):
    """The directory of a trial's outputs, as its run begins."""

    uuid: str
    path: str | None = None
    storage: dict[str, Any] | None = None
    copy: str | None = None


class OutputsLeft(msgspec.Struct, frozen=True):
    """The outputs as a run has left them."""

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
        image: The image of the code's container, with the facts that distinguish it from another
            of that name; None without a container, or where `container_prefix` starts it.
    """

    kernel: str = ""
    machine: str = ""
    cpu: str | None = None
    gpus: dict[str, int] = {}
    driver: str | None = None
    image: str | None = None


class _RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The common fields. A record that can't be read has the type "corrupt", a path, a problem."""

    type: str = ""
    v: int = 1
    run: int = 0
    time: Time | None = None
    path: str = ""
    problem: str = ""


class StartRecord(_RunRecord, frozen=True, kw_only=True):
    """A run's claim; the last seven fields are those of runs that were not submitted here."""

    experiment: int = 0
    trial: int = 0
    index: int = 0
    request_id: str | None = None
    hparams: dict[str, Any] | None = None
    seed: int = 0
    job: JobRecord = JobRecord()
    host: str | None = None
    resume: ResumeRecord | None = None
    continued: Continued | None = None
    continues: bool = False  # it goes on after a terminal end record
    counted_bytes: dict[Annotated[str, Meta(pattern=r"^\d{1,9}(\.\d{1,9})?$")], Size] = {}
    fencing_token: Size | None = None
    environment: dict[str, Any] | None = None  # `records.Environment`, which nodes stage
    outputs: OutputsClaim | None = None
    hardware: Hardware | None = None
    process: str = ""
    chief: str = ""
    command: str | None = None
    program: str | None = None  # in its place in 0.1.0
    interactive: bool = False
    address: str | None = None
    port: int | None = None

    @property
    def resumed(self) -> ResumeRecord:
        """The checkpoint that it began with; none and 0 steps from scratch."""
        return self.resume or ResumeRecord()


class EndRecord(_RunRecord, frozen=True, kw_only=True):
    """A run's end record."""

    outcome: str = ""
    reason: str | None = None
    exit_code: int | None = None
    exclude: tuple[str, ...] = ()
    cause: str | None = None
    bad_node: str | None = None
    began: bool = True
    failure: dict[str, Any] | None = None
    not_staged: dict[str, str] = {}
    deleted: str | None = None
    usage: Any = None  # `parse_usage` reads it
    outputs: OutputsLeft | None = None

    @property
    def failure_digest(self) -> str | None:
        """The kind of its failure, or the hash of an error of the code; None if not recognised."""
        found = (self.failure or {}).get("digest")
        return found if isinstance(found, str) else None


R = TypeVar("R", bound=_RunRecord)


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
    outputs: OutputsLeft | None = None
    seconds: Seconds | None = None  # for which it kept the training loop waiting


class _Spent(_Record, kw_only=True):
    on: str
    seconds: Seconds


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
    "spent": _Spent,
    "storage": _Storage,
    "status": _Text,
    "early_exit": _Text,
    "non_retryable": _Text,
    "alert": _Alert,
    "run_metadata": _Metadata,
}


def well_formed(record: Mapping[str, Any]) -> bool:
    """Whether a log's record has the types that folds rely on, if folds know it at all."""
    kind = record.get("t")
    if not isinstance(kind, str):
        return kind is None
    return misfit(record, _KINDS.get(kind, _Record)) is None


def misfit(record: Mapping[str, Any], kind: type[msgspec.Struct]) -> str | None:
    """Why a record does not have the types of `kind`; None if it has."""
    try:
        msgspec.convert(record, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def typed_record(record: Mapping[str, Any], kind: type[R], path: PurePath) -> R:
    """The record of a file with the types of `kind`, else a corrupt record in its place."""
    try:
        return msgspec.convert(record, kind, str_keys=True)
    except msgspec.ValidationError as error:
        return kind(type="corrupt", problem=str(error), path=str(path))
