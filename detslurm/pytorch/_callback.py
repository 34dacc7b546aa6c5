"""Hooks by which a trial follows its training."""

from __future__ import annotations

from typing import Any


class PyTorchCallback:
    """Hooks around training, validation and checkpoints; override those of interest.

    Every rank runs its own copy, unless a hook is documented to be called on the chief only. A
    callback that keeps something must save it with `state_dict()` and `load_state_dict()`: a trial
    may be stopped and go on elsewhere at any time.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called before anything else.

        Args:
            first_batch_idx: The first batch that this run trains.
            checkpoint_uuid: The checkpoint to start from: the trial's latest, or else the one of
                its warm start, or None.
        """

    def on_training_start(self) -> None:
        """Called after the checkpoint was loaded, before training begins."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before the first batch of epoch `epoch_idx`, from 0; not when a trial resumes
        within it.
        """

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Called after the last batch of epoch `epoch_idx`, counted from 0."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Called after the batches whose metrics are reported together. In a `DeepSpeedTrial` they
        end with each epoch, too.

        Args:
            avg_metrics: The metrics that are reported, averaged over batches and ranks.
            batch_metrics: The metrics of each batch on this rank.
        """

    def on_validation_start(self) -> None:
        """Called before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch of a validation."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """Called after the last batch of a validation. `outputs` are the results of
        `evaluate_batch()` for each batch on this rank.
        """

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Called after a validation. `metrics` are those over all ranks."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Called before states are restored from the loaded `checkpoint`."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Called on the chief only, before the state `checkpoint` is written, additions included.
        In a `DeepSpeedTrial` each rank calls it, with its own part.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Deprecated: override `on_checkpoint_write_end`. Called on the chief only; the files are
        in `checkpoint_dir`.
        """

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """Called on the chief only, after a checkpoint was written to a directory.

        It is not complete yet: files added to the directory now become part of it.

        Args:
            checkpoint_dir: The directory with the checkpoint's files. It has another name
                once the checkpoint is complete, or is gone: don't keep it, but read with
                `core.checkpoint.restore_path(uuid)` of `on_checkpoint_upload_end`.
        """

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Called after the checkpoint with the storage id `uuid` is complete in the storage."""

    def on_trial_shutdown(self) -> None:
        """Called last: the trial is done, stopped and may go on later, or failed.

        The last callback is called first, and each of them even if another one fails.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what every checkpoint saves of this callback; it must be picklable."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`, the state of this callback in the checkpoint."""
