"""The training loop's interface to a kind of trial: to train a batch, to evaluate, to save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from detslurm.core import Context
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch.checkpointing._writing import Checkpoints


@dataclass(frozen=True)
class Shard:
    """This rank's part of the data: every `size`-th batch. Some ranks may read none."""

    rank: int
    size: int
    reads: bool = True


class Evaluator(Protocol):
    """The validation data of this rank, and how to evaluate it."""

    together: bool
    """Ranks make a forward pass together, or none: an error must end this process."""

    def begin(self) -> None:
        """Put models into evaluation mode."""

    def passes(self) -> int:
        """How many passes all ranks make, where they make them together; 0 otherwise."""

    def outputs(self) -> list[Any]:
        """The results of `evaluate_batch()` for every batch of this rank."""

    def keep_up(self, passes: int) -> None:
        """Take part in others' passes; what comes of it doesn't count."""

    def full(self) -> Any:
        """The result of `evaluate_full_dataset()`."""


class Driver(Protocol):
    """Trains one kind of trial: wrapped models, or DeepSpeed's engines.

    Its constructor raises `InvalidExperimentException` where the trial lacks what training needs.
    """

    windows_end_with_epochs: bool
    """Whether metrics are reported after each epoch, whatever the periods are."""
    loader_checks_off: str
    """The call that allows data loaders of other kinds."""

    shard: Shard
    """This rank's part of the training and validation data."""
    loader_batches: int
    """How many batches of the data loader make one of training."""
    reports: bool
    """Whether this rank's metrics count."""

    def epoch_len(self, lengths: Sequence[int | None]) -> int:
        """The batches of an epoch, from the lengths of all ranks' data loaders."""

    def begin_training(self) -> None:
        """Put models into training mode."""

    def train_batch(self, batches: Iterator[Any] | None, epoch_idx: int, batch_idx: int) -> Any:
        """Train on one batch; what `train_batch()` returned."""

    def reporting(self, done: int, length: int) -> None:
        """Check for mistakes before a report, after `done` of `length` batches."""

    def evaluator(self, batches: Any, at_most: int | None) -> Evaluator:
        """Evaluates the trial; of `at_most` batches, or all."""

    def checkpoints(self, core: Context, hooks: Hooks, *, is_trainer: bool) -> Checkpoints:
        """Saves and loads the trial."""
