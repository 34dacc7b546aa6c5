"""Save a trial as a checkpoint, and take it up from one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from detslurm.core import Context
from detslurm.core._collective import run_collectively
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._rng import rng_state
from detslurm.pytorch._state import TrialState
from detslurm.pytorch._trial import PyTorchTrial
from detslurm.pytorch.checkpointing import _checkpoint_dir as files
from detslurm.pytorch.checkpointing import _sharded as sharded
from detslurm.pytorch.checkpointing._options import Options
from detslurm.pytorch.checkpointing._snapshot import Snapshots
from detslurm.pytorch.checkpointing._state_dict import (
    collect,
    gradients,
    restore,
    restore_gradients,
)
from detslurm.pytorch.checkpointing._writing import Checkpoints, CheckpointWriter

logger = logging.getLogger("detslurm.pytorch")

_GRADIENTS = "gradients_rank{}.pth"


@dataclass(frozen=True)
class Contents:
    """What goes into a checkpoint."""

    whole: dict[str, Any]
    counters: TrialState
    gathered: list[dict[str, Any]] | None
    """This rank's gradients, where batches have left some to the next."""
    sharded: dict[str, torch.Tensor]
    """Tensors that are spread over the ranks."""


class ModelCheckpoints(Checkpoints):
    """The checkpoints of a `PyTorchTrial`; all ranks make the same calls."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        core: Context,
        hooks: Hooks,
        *,
        is_trainer: bool,
    ) -> None:
        self._context, self._hooks = context, hooks
        self._writer = CheckpointWriter(
            trial, context, core, hooks, kind="PyTorchTrial", is_trainer=is_trainer
        )
        # One thread: checkpoints are written one after the other, in the order of training.
        self._background = (
            ThreadPoolExecutor(1, "checkpoint") if context._saves_in_background else None
        )
        self._unfinished: Future[str] | None = None
        self._saved = TrialState()  # the one that counts the unfinished checkpoint as saved
        self._snapshots = Snapshots()

    def save(self, state: TrialState, *, leaving: bool = False, alone: bool = False) -> str | None:
        """Save everything; returns the storage id.

        With `alone` nothing is asked of other ranks, which may not be there any more: the chief
        saves what it has, workers do nothing and get None. A trial that saves in the background
        gets None, too, unless it is `leaving`: `wait()` returns when the checkpoint is complete. So
        does one that goes on without a checkpoint, for lack of space.
        """
        # The one before must be complete first: the memory that its state was copied to is reused.
        if alone:
            self.close()
        else:
            self.wait(leaving=False)
        dist = self._context.distributed
        if alone and dist.rank != 0:
            return None
        random = [rng_state()] if alone else dist.gather(rng_state()) or [rng_state()]
        whole = collect(self._context, self._hooks.callbacks, random)
        self._hooks.on_checkpoint_save_start(whole)
        contents = self._contents(whole, state, alone=alone)
        # A thread must not take part in collective calls: those of the training loop would come in
        # between in another order on each rank. What needs all ranks is saved in the foreground.
        together = dist.size > 1 and (contents.gathered is not None or bool(contents.sharded))
        if alone and contents.sharded and dist.size > 1:
            logger.warning("no checkpoint is saved: parts of the state are on other ranks")
            return None
        uuid = None
        if self._background is not None and not (alone or leaving or together):
            self._begin_in_background(contents)
            self._saved = state
        elif together or alone or dist.size == 1:
            shard = together and not alone
            uuid = self._writer.kept(lambda: self._write(contents, shard=shard), leaving=leaving)
        else:
            uuid = self._writer.kept(
                lambda: self._from_chief(lambda: self._write(contents)), leaving=leaving
            )
        if uuid is not None:
            self._hooks.on_checkpoint_upload_end(uuid)
        if uuid is not None or self._unfinished is not None:
            state.ranks, state.last_ckpt = dist.size, state.batches_trained
        return uuid

    def _contents(self, whole: dict[str, Any], state: TrialState, *, alone: bool) -> Contents:
        dist = self._context.distributed
        own, spread = gradients(self._context), gradients(self._context, sharded=True)
        carried = self._between_steps(state) or any(own) or any(spread)
        if not alone:
            carried = any(dist.allgather(carried))  # a trial may leave some on one rank alone
        if any(spread):
            whole["sharded_gradients"] = spread
        whole, sharded_tensors = sharded.split(whole)
        counters = replace(state, ranks=dist.size, last_ckpt=state.batches_trained)
        return Contents(whole, counters, own if carried else None, sharded_tensors)

    def _from_chief(self, write: Callable[[], str]) -> str:
        dist = self._context.distributed
        return run_collectively(
            dist, lambda: write() if dist.rank == 0 else "", lambda uuids: uuids[0]
        )

    def _begin_in_background(self, contents: Contents) -> None:
        assert self._background is not None
        # The copy is made here, in the training loop: the next step changes the tensors. Only
        # writing it happens in the thread.
        if self._context.distributed.rank == 0:
            whole, gathered = self._snapshots.take((contents.whole, contents.gathered))
            still = replace(contents, whole=whole, gathered=gathered)
            self._unfinished = self._background.submit(self._write, still)
        else:
            # Workers write nothing, but call `check` and `wait` when the chief does.
            self._unfinished = Future()
            self._unfinished.set_result("")

    def check(self) -> None:
        """Take note of the checkpoint that was begun, if it is complete; raises what went wrong
        with it. All ranks must call."""
        if self._unfinished is None:
            return
        # The chief decides for all: its thread may end between two ranks' own queries, and only
        # some of them would enter the collective calls of `wait`.
        if self._context.distributed.broadcast(self._unfinished.done()):
            self.wait(leaving=False)

    def wait(self, *, leaving: bool = True) -> None:
        """Wait until the checkpoint that was begun is complete; raises what went wrong with it.

        All ranks must call.
        """
        # Taken out first: should it have failed, the error is raised once, not at each later call.
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None:
            uuid = self._writer.kept(lambda: self._from_chief(unfinished.result), leaving=leaving)
            if uuid is None:
                self._saved.last_ckpt = 0  # nothing was saved after that batch
            else:
                self._hooks.on_checkpoint_upload_end(uuid)

    def close(self) -> None:
        """Let what was begun come to its end, when nothing can be asked of other ranks."""
        # Waits for the thread: a process that ended now would leave a checkpoint that is never
        # sealed.
        if self._background is not None:
            self._background.shutdown()
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is not None and unfinished.exception() is not None:
            # Something else went wrong first: that is what is raised.
            logger.error("a checkpoint could not be saved: %s", unfinished.exception())

    def _between_steps(self, state: TrialState) -> bool:
        return state.batches_trained % self._context._aggregation != 0

    def _write(self, contents: Contents, *, shard: bool = False) -> str:
        rank = self._context.distributed.rank

        def fill(path: Path) -> None:
            if contents.gathered is not None:
                torch.save(contents.gathered, path / _GRADIENTS.format(rank))
            if contents.sharded:
                sharded.write(path, contents.sharded)
            if rank == 0:
                files.save(contents.whole, path / files.STATE)

        return self._writer.write(contents.counters, fill, shard=shard)

    def load(self, path: Path, state: TrialState, *, own_options: bool = False) -> None:
        """Put models and everything else back, but for hyperparameters with `own_options`."""
        whole = sharded.joined(files.read_state(path), path, self._context)
        self._hooks.on_checkpoint_load_start(whole)
        own = self._options() if own_options else None
        try:
            restore(self._context, self._hooks.callbacks, whole)
        except (RuntimeError, ValueError) as err:
            err.add_note(f"The checkpoint {path} doesn't fit the models that this trial makes now.")
            raise
        if own is not None:
            own.apply()
        if state.batches_trained:
            self._load_gradients(path, state)
            if "sharded_gradients" in whole:
                restore_gradients(self._context, [whole["sharded_gradients"]])

    def _options(self) -> Options:
        context = self._context
        return Options(context.optimizers, [one._scheduler for one in context.lr_schedulers])

    def _load_gradients(self, path: Path, state: TrialState) -> None:
        ranks = state.ranks
        found = [path / _GRADIENTS.format(rank) for rank in range(ranks)]
        if not all(file.exists() for file in found):
            if self._between_steps(state):
                logger.warning(
                    "the checkpoint was saved between two steps of the optimizer, without the"
                    " gradients gathered so far: the next step lacks those batches"
                )
            return
        own = (
            found
            if ranks != self._context.distributed.size
            else [found[self._context.distributed.rank]]
        )
        parts = [torch.load(file, map_location="cpu", weights_only=True) for file in own]
        restore_gradients(self._context, parts)
