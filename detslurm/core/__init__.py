"""The Core API: metrics, checkpoints, preemption and search for any training script."""

from detslurm._base import needs_msgspec  # noqa: F401
from detslurm.core._checkpoint import CheckpointContext, DownloadMode
from detslurm.core._context import Context, init
from detslurm.core._distributed import DistributedContext
from detslurm.core._preempt import PreemptContext, PreemptMode
from detslurm.core._profiler import ProfilerContext
from detslurm.core._searcher import SearcherContext, SearcherMode, SearcherOperation, Unit
from detslurm.core._tensorboard import TensorboardMode
from detslurm.core._train import EarlyExitReason, TrainContext
from detslurm.core.transports.health import DistributedError

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DistributedError",
    "DownloadMode",
    "EarlyExitReason",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "init",
]
