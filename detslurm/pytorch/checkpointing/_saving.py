"""Save a trial as a checkpoint, and restore it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from detslurm.core._collective import run_collectively
from detslurm.core._retries import keep_trying
from detslurm.frameworks.optimizer_options import Options
from detslurm.pytorch._context import PyTorchTrialContext
from detslurm.pytorch._rng import rng_state
from detslurm.pytorch._state import TrialState
from detslurm.pytorch.checkpointing import _checkpoint_dir as files
from detslurm.pytorch.checkpointing import _sharded as sharded
from detslurm.pytorch.checkpointing._background import Saving, Submit
from detslurm.pytorch.checkpointing._state_dict import (
    collect,
    gradients,
    restore,
    restore_gradients,
)
from detslurm.pytorch.checkpointing._writing import Checkpoints

logger = logging.getLogger("detslurm.pytorch")

_GRADIENTS = "gradients_rank{}.pth"


@dataclass(frozen=True)
class Contents:
    """The content of a checkpoint."""

    whole: dict[str, Any]
    counters: TrialState
    gathered: list[dict[str, Any]] | None
    """This rank's gradients, where batches have left some to the next."""
    sharded: dict[str, torch.Tensor]
    """Tensors that are spread over the ranks."""


class ModelCheckpoints(Checkpoints):
    """The checkpoints of a `PyTorchTrial`; all ranks make the same calls."""

    _kind = "PyTorchTrial"
    _context: PyTorchTrialContext

    def save(self, state: TrialState, *, leaving: bool = False, alone: bool = False) -> str | None:
        """Save everything; returns the storage id.

        With `alone` nothing is asked of other ranks, which may not be there any more: the chief
        saves what it has, workers do nothing and get None. A trial that saves in the background
        gets None, too, unless it is `leaving`: `wait()` returns when the checkpoint is complete. So
        does a trial that goes on without a checkpoint, for lack of space.
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
        if dist.rank == 0:
            self._hooks.on_checkpoint_save_start(whole)
        contents = self._contents(whole, state, alone=alone)
        # Parts that need all ranks are saved in the foreground: a thread makes no collective calls.
        together = dist.size > 1 and (contents.gathered is not None or bool(contents.sharded))
        if alone and contents.sharded and dist.size > 1:
            logger.warning("no checkpoint is saved: parts of the state are on other ranks")
            return None
        if self._background is not None and not (alone or leaving or together):
            self._background.begin(partial(self._in_background, contents), state)
            return None
        write = partial(self._write, contents, shard=together and not alone)
        if not (together or alone or dist.size == 1):
            write = partial(self._from_chief, write)
        uuid = self._writer.kept(write, leaving=leaving)
        if uuid is not None:
            self._hooks.on_checkpoint_upload_end(uuid)
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

    def _in_background(self, contents: Contents, submit: Submit) -> Saving:
        # Workers write nothing, but make the same calls as the chief.
        done: Future[str] = Future()
        if self._context.distributed.rank == 0:
            # The copy is made here, in the training loop: the next step changes the tensors. Only
            # writing it happens in the thread.
            self._snapshots.begin()
            whole, gathered = self._snapshots.take((contents.whole, contents.gathered))
            done = submit(partial(self._write, replace(contents, whole=whole, gathered=gathered)))
        else:
            done.set_result("")
        yield done
        return self._from_chief(done.result)

    def _between_steps(self, state: TrialState) -> bool:
        return state.batches_trained % self._context._aggregation != 0

    def _write(self, contents: Contents, *, shard: bool = False) -> str:
        rank = self._context.distributed.rank

        def fill(path: Path) -> None:
            if contents.gathered is not None:
                gradients_file = path / _GRADIENTS.format(rank)
                files.write_torch(contents.gathered, gradients_file)
            if contents.sharded:
                sharded.write(path, contents.sharded)
            if rank == 0:
                files.save(contents.whole, path / files.STATE)

        return self._writer.write(contents.counters, fill, shard=shard)

    def load(self, path: Path, state: TrialState, *, own_options: bool = False) -> None:
        """Put models and everything else back, but for hyperparameters with `own_options`."""
        state_dict = keep_trying(lambda: files.read_state(path))
        whole = sharded.joined(state_dict, path, self._context)
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
        if not all(keep_trying(file.exists) for file in found):
            if self._between_steps(state):
                logger.warning(
                    "batch %d lies between two steps of the optimizer, and the checkpoint has no"
                    " gathered gradients: the next step is one of fewer batches",
                    state.batches_trained,
                )
            return
        own = (
            found
            if ranks != self._context.distributed.size
            else [found[self._context.distributed.rank]]
        )
        read = partial(torch.load, map_location="cpu", weights_only=True)
        parts = [keep_trying(partial(read, file)) for file in own]
        restore_gradients(self._context, parts)
