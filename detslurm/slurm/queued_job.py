"""A job as the queue lists it."""

from __future__ import annotations

from dataclasses import dataclass

from detslurm.slurm.hostlist import compress_indices
from detslurm.slurm.queue_state import QueueState


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob(QueueState):
    """A row of the queue: a job, an element of an array, or elements that wait together.

    Its resources (nodes, CPUs, GPUs, memory) are those of one element. Times are unix
    seconds, durations seconds; None and the empty text mean: none, or unknown.
    """

    job_id: str  # of an element: its array's
    indices: tuple[int, ...] = ()  # of a plain job: none
    throttle: int | None = None  # how many elements of its array may run at once
    state: str
    reason: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    qos: str = ""
    partitions: tuple[str, ...] = ()  # a waiting job may have named several
    priority: int | None = None
    nice: int | None = None
    submitted: float | None = None
    started: float | None = None
    expected_start: float | None = None
    time_limit: int | None = None
    time_left: int | None = None
    node_count: int | None = None
    nodes: tuple[str, ...] = ()
    cpus: int = 0
    gpus: int = 0
    memory: int | None = None  # MiB
    dependency: str = ""
    reservation: str = ""
    features: str = ""
    licenses: str = ""
    folder: str = ""  # its working directory
    comment: str = ""

    @property
    def ref(self) -> str:
        """`4711`, `4711_3`, or `4711_[3-9]` of elements that wait together."""
        if not self.indices:
            return self.job_id
        text = compress_indices(self.indices)
        return f"{self.job_id}_{text if len(self.indices) == 1 else f'[{text}]'}"

    @property
    def refs(self) -> list[str]:
        """The references of its elements, or of the plain job."""
        return [f"{self.job_id}_{index}" for index in self.indices] or [self.job_id]

    @property
    def count(self) -> int:
        """How many elements it stands for; 1 for a plain job."""
        return len(self.indices) or 1

    @property
    def slots(self) -> int:
        """The slots of one element: its GPUs, or else its CPUs."""
        return self.gpus or self.cpus
