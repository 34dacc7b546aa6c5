"""What a trial can be told about its training."""

from __future__ import annotations

from typing import Any


class PyTorchCallback:
    """Hooks around training, validation and checkpoints; override those of interest.

    Every rank runs its own copy, but for what is said of the chief below. A callback that keeps
    something must save it with `state_dict()` and `load_state_dict()`: a trial may be stopped and
    go on elsewhere at any time.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Before anything else, with the first batch to train and the checkpoint to start from.

        The checkpoint is the trial's latest, or else the one that it starts warm from, or None.
        """

    def on_training_start(self) -> None:
        """After the checkpoint was loaded, before training begins."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Before the first batch of an epoch; not when a trial goes on in the middle of one."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """After the last batch of an epoch."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """After a stretch of batches whose metrics are reported together."""

    def on_validation_start(self) -> None:
        """Before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch of a validation."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """After the last batch of a validation, with what every batch returned on this rank."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """After a validation, with the metrics over all ranks."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Before states are restored from what was loaded."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Before a checkpoint is written; what is added here is written, too."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Deprecated: override `on_checkpoint_write_end`. Chief only."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """After a checkpoint was written to a directory. Chief only."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """After a checkpoint is complete in the storage."""

    def on_trial_shutdown(self) -> None:
        """Before leaving: the trial is done, stopped and may go on later, or failed.

        The last callback is called first, and each of them even if another one's fails.
        """

    def state_dict(self) -> dict[str, Any]:
        """What is to be saved of this callback with every checkpoint; it must be picklable."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict()` had saved."""
