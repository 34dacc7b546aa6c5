"""Save a trial as a checkpoint, and take it up from one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import detslurm
from detslurm.core import Context
from detslurm.core._agreement import in_step
from detslurm.pytorch import _checkpoint_dir as files
from detslurm.pytorch import _sharded as sharded
from detslurm.pytorch._code import copy_code
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._rng import rng_state
from detslurm.pytorch._snapshot import Snapshots
from detslurm.pytorch._state import TrialState
from detslurm.pytorch._states import collect, gradients, restore, restore_gradients
from detslurm.pytorch._trial import PyTorchTrial

logger = logging.getLogger("detslurm.pytorch")

_GRADIENTS = "gradients_rank{}.pth"


@dataclass(frozen=True)
class Contents:
    """What goes into a checkpoint."""

    whole: dict[str, Any]
    counters: TrialState
    gathered: list[dict[str, Any]] | None
    """This rank's gradients, between two steps of the optimizer."""
    sharded: dict[str, torch.Tensor]
    """Tensors that are spread over the ranks."""


class Checkpoints:
    """The checkpoints of one trial; all ranks make the same calls."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        core: Context,
        hooks: Hooks,
        *,
        is_trainer: bool,
    ) -> None:
        self._trial, self._context, self._core, self._hooks = trial, context, core, hooks
        self._is_trainer = is_trainer
        self._background = (
            ThreadPoolExecutor(1, "checkpoint") if context._saves_in_background else None
        )
        self._unfinished: Future[str] | None = None
        self._snapshots = Snapshots()

    def save(self, state: TrialState, *, leaving: bool = False, alone: bool = False) -> str | None:
        """Save everything; returns the storage id.

        With `alone` nothing is asked of other ranks, which may not be there any more: the chief
        saves what it has, workers do nothing and get None. A trial that saves in the background
        gets None, too, unless it is `leaving`: `wait()` tells when the checkpoint is complete.
        """
        if alone:
            self.close()
        else:
            self.wait()
        dist = self._context.distributed
        if alone and dist.rank != 0:
            return None
        random = [rng_state()] if alone else dist.gather(rng_state()) or [rng_state()]
        whole = collect(self._context, self._hooks.callbacks, random)
        self._hooks.on_checkpoint_save_start(whole)
        contents = self._contents(whole, state)
        together = dist.size > 1 and (contents.gathered is not None or bool(contents.sharded))
        if alone and contents.sharded and dist.size > 1:
            logger.warning("no checkpoint is saved: parts of the state are on other ranks")
            return None
        state.ranks, state.last_ckpt = dist.size, state.batches_trained
        if self._background is not None and not (alone or leaving or together):
            self._begin_in_background(contents)
            return None
        if together or alone or dist.size == 1:
            uuid = self._write(contents, shard=together and not alone)
        else:
            uuid = self._from_chief(lambda: self._write(contents))
        self._hooks.on_checkpoint_upload_end(uuid)
        return uuid

    def _contents(self, whole: dict[str, Any], state: TrialState) -> Contents:
        gathered = None
        if self._between_steps(state):
            gathered = gradients(self._context)
            whole["sharded_gradients"] = gradients(self._context, sharded=True)
            if not any(whole["sharded_gradients"]):
                del whole["sharded_gradients"]
        whole, sharded_tensors = sharded.split(whole)
        ranks = self._context.distributed.size
        counters = replace(state, ranks=ranks, last_ckpt=state.batches_trained)
        return Contents(whole, counters, gathered, sharded_tensors)

    def _from_chief(self, write: Callable[[], str]) -> str:
        dist = self._context.distributed
        return in_step(dist, lambda: write() if dist.rank == 0 else "", lambda uuids: uuids[0])

    def _begin_in_background(self, contents: Contents) -> None:
        assert self._background is not None
        if self._context.distributed.rank == 0:
            whole, gathered = self._snapshots.take((contents.whole, contents.gathered))
            still = replace(contents, whole=whole, gathered=gathered)
            self._unfinished = self._background.submit(self._write, still)
        else:
            self._unfinished = Future()
            self._unfinished.set_result("")

    def check(self) -> None:
        """Take note of the checkpoint that was begun, if it is complete; raises what went wrong
        with it. All ranks must call."""
        if self._unfinished is None:
            return
        if self._context.distributed.broadcast(self._unfinished.done()):
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is complete; raises what went wrong with it.

        All ranks must call.
        """
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            self._hooks.on_checkpoint_upload_end(self._from_chief(unfinished.result))

    def close(self) -> None:
        """Let what was begun come to its end, when nothing can be asked of other ranks."""
        if self._background is not None:
            self._background.shutdown()
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None and unfinished.exception() is not None:
            # Something else went wrong first: that is what is raised.
            logger.error("a checkpoint could not be saved: %s", unfinished.exception())

    def _between_steps(self, state: TrialState) -> bool:
        return state.batches_trained % self._context._aggregation != 0

    def _write(self, contents: Contents, *, shard: bool = False) -> str:
        rank, counters = self._context.distributed.rank, contents.counters
        metadata = {
            "steps_completed": counters.batches_trained,
            "framework": f"torch-{torch.__version__}",
            "format": "pickle",
            "detslurm_version": detslurm.__version__,
        }
        with self._core.checkpoint.store_path(metadata, shard=shard) as (path, uuid):
            if contents.gathered is not None:
                torch.save(contents.gathered, path / _GRADIENTS.format(rank))
            if contents.sharded:
                sharded.write(path, contents.sharded)
            if rank == 0:
                files.write(path, contents.whole, counters.to_dict(), self._load_data())
                copy_code(path / "code", type(self._trial))
                self._hooks.on_checkpoint_end(str(path))
                self._hooks.on_checkpoint_write_end(str(path))
        return uuid

    def _load_data(self) -> dict[str, Any]:
        kind = type(self._trial)
        return {
            "trial_type": "PyTorchTrial",
            "experiment_config": self._context._exp_conf,
            "hparams": self._context._hparams,
            "trial_cls_spec": f"{kind.__module__}:{kind.__qualname__}",
            "is_trainer": self._is_trainer,
        }

    @contextmanager
    def opened(self, checkpoint: str | None) -> Iterator[Path | None]:
        """The files of a checkpoint, by storage id or as a directory. Raises
        `detslurm.errors.CheckpointNotFound`."""
        if checkpoint is None:
            yield None
        elif Path(checkpoint).is_dir():
            yield Path(checkpoint)
        else:
            with self._core.checkpoint.restore_path(checkpoint) as path:
                yield path

    def load(self, path: Path, state: TrialState) -> None:
        """Put models and everything else back."""
        whole = sharded.joined(files.read_state(path), path, self._context)
        self._hooks.on_checkpoint_load_start(whole)
        restore(self._context, self._hooks.callbacks, whole)
        if state.batches_trained and self._between_steps(state):
            self._load_gradients(path, state.ranks)
            if "sharded_gradients" in whole:
                restore_gradients(self._context, [whole["sharded_gradients"]])

    def _load_gradients(self, path: Path, ranks: int) -> None:
        found = [path / _GRADIENTS.format(rank) for rank in range(ranks)]
        if not all(file.exists() for file in found):
            logger.warning(
                "the checkpoint was saved between two steps of the optimizer, without the gradients"
                " gathered so far: the next step lacks those batches"
            )
            return
        own = (
            found
            if ranks != self._context.distributed.size
            else [found[self._context.distributed.rank]]
        )
        parts = [torch.load(file, map_location="cpu", weights_only=True) for file in own]
        restore_gradients(self._context, parts)
