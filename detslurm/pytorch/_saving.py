"""Save a trial as a checkpoint, and take it up from one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import detslurm
from detslurm.core import Context
from detslurm.core._agreement import in_step
from detslurm.pytorch import _checkpoint_dir as files
from detslurm.pytorch._code import copy_code
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._rng import rng_state
from detslurm.pytorch._state import TrialState
from detslurm.pytorch._states import collect, copied, gradients, restore, restore_gradients
from detslurm.pytorch._trial import PyTorchTrial

logger = logging.getLogger("detslurm.pytorch")

_GRADIENTS = "gradients_rank{}.pth"


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
        self._background = ThreadPoolExecutor(1) if context._saves_in_background else None
        self._unfinished: Future[str] | None = None

    def save(self, state: TrialState, *, alone: bool = False) -> str | None:
        """Save everything; returns the storage id.

        With `alone` nothing is asked of other ranks, which may not be there any more: the chief
        saves what it has, workers do nothing and get None. A trial that saves in the background
        gets None, too: `wait()` tells when the checkpoint is complete.
        """
        if alone:
            self.close()
        else:
            self.wait()
        dist = self._context.distributed
        is_chief = dist.rank == 0
        if alone and not is_chief:
            return None
        random = [rng_state()] if alone else dist.gather(rng_state()) or [rng_state()]
        whole = collect(self._context, self._hooks.callbacks, random)
        self._hooks.on_checkpoint_save_start(whole)
        state.ranks = dist.size
        counters = replace(state, last_ckpt=state.batches_trained)
        shard = dist.size > 1 and not alone and self._between_steps(state)
        state.last_ckpt = state.batches_trained
        if self._background is not None and not alone and not shard:
            self._begin_in_background(whole, counters)
            return None
        if alone or shard or dist.size == 1:
            uuid = self._write(whole, counters, shard=shard)
        else:
            uuid = self._from_chief(lambda: self._write(whole, counters, shard=False))
        self._hooks.on_checkpoint_upload_end(uuid)
        return uuid

    def _from_chief(self, write: Callable[[], str]) -> str:
        dist = self._context.distributed
        return in_step(dist, lambda: write() if dist.rank == 0 else "", lambda uuids: uuids[0])

    def _begin_in_background(self, whole: dict[str, Any], counters: TrialState) -> None:
        assert self._background is not None
        if self._context.distributed.rank == 0:
            still = copied(whole)  # training goes on and changes what it was taken from
            gathered = copied(gradients(self._context)) if self._between_steps(counters) else None
            self._unfinished = self._background.submit(
                self._write, still, counters, shard=False, gathered=gathered
            )
        else:
            self._unfinished = Future()
            self._unfinished.set_result("")

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

    def _between_steps(self, state: TrialState) -> bool:
        return state.batches_trained % self._context._aggregation != 0

    def _write(
        self,
        whole: dict[str, Any],
        state: TrialState,
        *,
        shard: bool,
        gathered: list[dict[str, Any]] | None = None,
    ) -> str:
        dist = self._context.distributed
        metadata = {
            "steps_completed": state.batches_trained,
            "framework": f"torch-{torch.__version__}",
            "format": "pickle",
            "detslurm_version": detslurm.__version__,
        }
        with self._core.checkpoint.store_path(metadata, shard=shard) as (path, uuid):
            if self._between_steps(state):
                own = gradients(self._context) if gathered is None else gathered
                torch.save(own, path / _GRADIENTS.format(dist.rank))
            if dist.rank == 0:
                files.write(path, whole, state.to_dict(), self._load_data())
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
        whole = files.read_state(path)
        self._hooks.on_checkpoint_load_start(whole)
        restore(self._context, self._hooks.callbacks, whole)
        if state.batches_trained and self._between_steps(state):
            self._load_gradients(path, state.ranks)

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
