"""A job as detslurm asks for it, before any cluster's dialect."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from detslurm.slurm.shell_variables import shell_variables


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The options of sbatch that ask for a trial's slots."""

    nodes: int = 1
    max_nodes: int | None = None  # given: --nodes=<nodes>-<max_nodes>
    ntasks: int | None = None
    ntasks_per_node: int | None = None
    cpus_per_task: int | None = None
    gpus: str | None = None
    gpus_per_task: str | None = None
    gres: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest(Layout):
    """One job, or one array of equal jobs, each of which execs `command` in the batch script."""

    name: str
    command: tuple[str, ...]
    folder: Path  # working directory, batch script and the output file that an array's jobs share

    # An array: `count` elements 0..count-1, or exactly those in `indices`; neither: a plain job.
    count: int | None = None
    indices: tuple[int, ...] = ()
    throttle: int | None = None

    # The needs of one element, in the experiment's own terms; `Layout` has them in sbatch's.
    slots: int = 1
    slot_type: str = "cpu"  # cuda, rocm or cpu

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_minutes: int | None = None
    nice: int | None = None
    comment: str | None = None
    exclude: tuple[str, ...] = ()
    dependency: str | None = None
    hold: bool = False
    requeue: bool = True
    signal_lead: int = 120  # seconds before the limit at which the runner gets SIGUSR1
    sbatch_args: tuple[str, ...] = ()
    # sbatch's input variables of the shell that asked for it, as NAME=value.
    variables: tuple[str, ...] = field(default_factory=shell_variables)
    mark: str | None = None  # by which its job is found again; no other request has it

    # Shell that runs before the command.
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("a job needs a command")
        if self.count is not None and self.count < 1:
            raise ValueError("an array needs at least one element")

    @property
    def is_array(self) -> bool:
        """True when the job has elements."""
        return self.count is not None or bool(self.indices)

    @property
    def elements(self) -> tuple[int, ...]:
        """The array's indices; empty for a plain job."""
        return self.indices or tuple(range(self.count or 0))

    def output(self, job_id: str) -> Path:
        """The file for all output before the runner opens its own log."""
        return self.folder / f"slurm-{job_id}.out"

    def with_changes(self, **changes: Any) -> JobRequest:
        """The same request with some fields replaced."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "folder": str(self.folder)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> JobRequest:
        """The request that `to_dict` wrote; fields of a newer version are skipped."""
        known = {one.name for one in fields(cls)}
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in data.items()
            if name in known
        }
        plain["folder"] = Path(data["folder"])
        return cls(**plain)
