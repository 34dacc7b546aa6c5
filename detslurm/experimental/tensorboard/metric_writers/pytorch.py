"""Determined's older way to torch's `SummaryWriter`."""

from __future__ import annotations

from typing import Any

from detslurm._base.node_files import make_directory
from detslurm.core._tensorboard import TensorboardFiles


class TorchWriter:
    """Writes TensorBoard files that are kept with the trial.

    They go to the directory of the newest context of `core.init()` or `pytorch.init()` in this
    process. Where there is none, or nothing is recorded, they last until the process ends.

    Attributes:
        writer: The `SummaryWriter` of torch.
    """

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        files = TensorboardFiles.newest()
        folder = make_directory("tensorboard") if files is None else files.path
        self.writer: Any = SummaryWriter(log_dir=str(folder))
        if files is not None:
            files.before_upload.append(self.writer.flush)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write a number.

        Args:
            name: Its tag.
            value: The number.
            step: The number of batches trained so far.
        """
        self.writer.add_scalar(name, value, step)

    def reset(self) -> None:
        """End the file; what follows begins another one."""
        self.writer.close()

    def flush(self) -> None:
        """Write the buffer out."""
        self.writer.flush()

    def close(self) -> None:
        """End the file."""
        self.writer.close()
