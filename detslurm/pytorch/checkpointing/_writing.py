"""Write the files of one checkpoint, and find those of another: what trials of every kind share."""

from __future__ import annotations

import abc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import detslurm
from detslurm.config.masking import shareable
from detslurm.core import Context
from detslurm.errors import CheckpointNotFound
from detslurm.pytorch._base_context import TrialContext
from detslurm.pytorch._base_trial import BaseTrial
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._state import TrialState
from detslurm.pytorch.checkpointing import _checkpoint_dir as files
from detslurm.pytorch.checkpointing._code import add_code, frozen_code
from detslurm.pytorch.checkpointing._disk_full import explaining_full_disk, is_full

logger = logging.getLogger("detslurm.pytorch")

_NEEDED = (
    "name",
    "entrypoint",
    "hyperparameters",
    "data",
    "searcher",
    "resources",
    "reproducibility",
    "records_per_epoch",
    "optimizations",
)
"""What a trial may ask of its configuration when it is made again to be used."""


class Checkpoints(abc.ABC):
    """The checkpoints of one trial; all ranks make the same calls.

    `check()`, `wait()` and `close()` are for those that are written in the background; by default
    `save()` returns when all is done.
    """

    @abc.abstractmethod
    def save(self, state: TrialState, *, leaving: bool = False, alone: bool = False) -> str | None:
        """Save everything; returns the storage id, None where there is none (yet).

        With `alone` nothing is asked of other ranks, which may not be there any more.
        """

    def check(self) -> None:  # noqa: B027
        """Take note of a checkpoint that was begun, if it is complete."""

    def wait(self) -> None:  # noqa: B027
        """Wait until a checkpoint that was begun is complete."""

    def close(self) -> None:  # noqa: B027
        """Let what was begun come to its end, when nothing can be asked of other ranks."""

    @abc.abstractmethod
    def load(self, path: Path, state: TrialState, *, own_options: bool = False) -> None:
        """Put everything back, but for hyperparameters with `own_options`."""


class CheckpointWriter:
    """Writes the files of checkpoints, and records them once they are complete.

    `kind` is the class that derives from it: what loads the checkpoint later depends on it.
    """

    def __init__(
        self,
        trial: BaseTrial,
        context: TrialContext,
        core: Context,
        hooks: Hooks,
        *,
        kind: str,
        is_trainer: bool,
    ) -> None:
        self._trial, self._context, self._core, self._hooks = trial, context, core, hooks
        self._kind, self._is_trainer = kind, is_trainer

    def write(
        self, counters: TrialState, fill: Callable[[Path], None], *, shard: bool = False
    ) -> str:
        """Write a checkpoint, its own files by `fill`; returns the storage id. With `shard` a
        collective of all ranks."""
        rank = self._context.distributed.rank
        metadata = {
            "steps_completed": counters.batches_trained,
            "framework": f"torch-{torch.__version__}",
            "format": "pickle",
            "detslurm_version": detslurm.__version__,
        }
        store_path = self._core.checkpoint.store_path(metadata, shard=shard)
        with store_path as (path, uuid), explaining_full_disk(path / files.STATE):
            fill(path)
            if rank == 0:
                files.write(path, counters.to_dicts(), self._load_data())
                final = self._core.checkpoint._is_final(uuid)
                add_code(path / "code", type(self._trial), final=final)
                self._hooks.on_checkpoint_end(str(path))
                self._hooks.on_checkpoint_write_end(str(path))
        # Only now is it sealed and recorded: until here a crash leaves a partial one that no reader
        # sees.
        if rank == 0:
            logger.info("saved checkpoint %s after batch %d", uuid, counters.batches_trained)
        return uuid

    def kept(self, save: Callable[[], str], *, leaving: bool) -> str | None:
        """The storage id; None where there is no space left and training can go on without."""
        try:
            return save()
        except Exception as err:
            dist = self._context.distributed
            # All ranks failed or none (see `run_collectively`), so all make this call. That the
            # disk is full may have been seen on one rank alone: they go on together, or raise
            # together.
            if leaving or not any(dist.allgather(is_full(err))):
                raise
            if dist.rank == 0:
                logger.error("no checkpoint is saved, training goes on until the next: %s", err)
            return None

    def _load_data(self) -> dict[str, Any]:
        kind, config, frozen = type(self._trial), self._context._exp_conf, frozen_code()
        return {
            "trial_type": self._kind,
            "experiment_config": None if config is None else shareable(config, _NEEDED),
            "hparams": self._context._hparams,
            "trial_cls_spec": f"{kind.__module__}:{kind.__qualname__}",
            "is_trainer": self._is_trainer,
            "code": None if frozen is None else str(frozen),
        }


@contextmanager
def opened(core: Context, checkpoint: str | None) -> Iterator[Path | None]:
    """The files of a checkpoint, by storage id or as a directory. Raises
    `detslurm.errors.CheckpointNotFound`."""
    if checkpoint is None:
        yield None
    elif Path(checkpoint).is_dir():
        yield Path(checkpoint)
    elif os.sep in str(checkpoint):
        raise CheckpointNotFound(f"latest_checkpoint: there is no directory {checkpoint}")
    else:
        with core.checkpoint.restore_path(checkpoint) as path:
            yield path
