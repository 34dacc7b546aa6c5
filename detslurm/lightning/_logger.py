"""Receives Lightning's logs: the metrics that a model logs, and new checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from lightning.pytorch.loggers.logger import DummyLogger
except ImportError:  # the package's earlier name, which is still published
    from pytorch_lightning.loggers.logger import DummyLogger

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import ModelCheckpoint


class ListeningLogger(DummyLogger):  # type: ignore[misc]
    """A logger without files, which passes on what it hears."""

    def __init__(
        self,
        on_metrics: Callable[[Mapping[str, Any]], None],
        on_checkpoint: Callable[[Path], None],
    ) -> None:
        super().__init__()
        self._on_metrics = on_metrics
        self._on_checkpoint = on_checkpoint

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Pass on logged values; the callback knows the step."""
        self._on_metrics(metrics)

    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Pass on the path of a checkpoint with which training can go on."""
        path = getattr(checkpoint_callback, "_last_checkpoint_saved", "")
        if path and not checkpoint_callback.save_weights_only:
            self._on_checkpoint(Path(path))
