"""Save a DeepSpeedTrial as a checkpoint, every rank its part, and restore it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from deepspeed.runtime.activation_checkpointing.checkpointing import get_cuda_rng_tracker

from detslurm._base.trust import NO_DIGEST, is_unverified
from detslurm.core._retries import keep_trying
from detslurm.frameworks.optimizer_options import Options
from detslurm.pytorch._rng import rng_state
from detslurm.pytorch._state import TrialState
from detslurm.pytorch.checkpointing import _checkpoint_dir as files
from detslurm.pytorch.checkpointing._state_dict import restore_callbacks, restore_rng
from detslurm.pytorch.checkpointing._writing import Checkpoints, UnwrittenFile
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._deferred import deferring, other_writers, retrying
from detslurm.pytorch.deepspeed._trial import DeepSpeedTrial
from detslurm.pytorch.deepspeed._universal import untrusted

logger = logging.getLogger("detslurm.pytorch")

_OF_RANK = "det_state_dict_rank{}.pth"


class EngineCheckpoints(Checkpoints):
    """The checkpoints of a `DeepSpeedTrial`; all ranks save and load together."""

    _kind = "DeepSpeedTrial"
    _trial: DeepSpeedTrial
    _context: DeepSpeedTrialContext

    def _can_defer(self) -> bool:
        dist = self._context.distributed
        others = next(filter(None, dist.allgather(other_writers(self._context.models))), None)
        if others and dist.rank == 0:
            logger.info("checkpoints are saved in the foreground: %s writes them", others[0])
        return others is None

    def save(self, state: TrialState, *, leaving: bool = False, alone: bool = False) -> str | None:
        """Save everything; returns the storage id, None where there is none.

        With `alone` there is none unless this is the only rank: engines save together. A trial that
        saves in the background gets None, too, unless it is `leaving`.
        """
        dist = self._context.distributed
        if alone and dist.size > 1:
            logger.warning("no checkpoint is saved: parts of the state are on other ranks")
            return None
        # The one before must be complete first: the memory that its state was copied to is reused.
        self.wait(leaving=False)
        own = self._own_state()
        counters = replace(state, ranks=dist.size, last_ckpt=state.batches_trained)

        def write() -> str:
            if self._background is None or leaving:
                fill = partial(self._fill, own)
                return self._writer.write(counters, fill, shard=dist.size > 1)
            copy = partial(self._copy, own)
            save = partial(self._writer.write_in_background, counters, copy)
            self._background.begin(save, state)
            return ""

        # Several ranks can't go on without a checkpoint that any of them has no space for: they
        # wait for it inside of DeepSpeed.
        uuid = write() if dist.size > 1 else self._writer.kept(write, leaving=leaving)
        if not uuid:
            return None
        self._hooks.on_checkpoint_upload_end(uuid)
        state.ranks, state.last_ckpt = dist.size, state.batches_trained
        return uuid

    def _own_state(self) -> dict[str, Any]:
        """The data that this rank saves besides its part of the engines."""
        own = {
            "callbacks": {name: one.state_dict() for name, one in self._hooks.callbacks.items()},
            "rng_state": rng_state(),
            # Model-parallel layers draw from these, beside the generators of all libraries.
            "activation_rng_states": get_cuda_rng_tracker().get_states(),
        }
        self._hooks.on_checkpoint_save_start(own)
        return own

    def _fill(self, own: dict[str, Any], path: Path) -> None:
        """Write this rank's files."""
        with _for_nobody_else_to_write(), self._ending_alone():
            files.save(own, path / _OF_RANK.format(self._context.distributed.rank))
            self._with_retries(partial(self._trial.save, self._context, path))

    def _with_retries(self, act: Callable[[], None]) -> None:
        """Save or load, over minutes in which the file system fails.

        Of several ranks no single rank may begin again, for the others are further: each file is
        tried again by itself.
        """
        with retrying(self._context.models):
            if self._context.distributed.size == 1:
                keep_trying(act)
            else:
                act()

    def _copy(self, own: dict[str, Any], path: Path) -> list[UnwrittenFile]:
        """Copy the data of this rank's files."""
        file = path / _OF_RANK.format(self._context.distributed.rank)
        self._snapshots.begin()
        with _for_nobody_else_to_write(), self._ending_alone():
            write = partial(files.save, self._snapshots.take(own), file)
            unwritten = [UnwrittenFile(file, write)]
            with deferring(self._context.models, self._snapshots, unwritten):
                self._trial.save(self._context, path)
        return unwritten

    @contextmanager
    def _ending_alone(self) -> Iterator[None]:
        """Let a rank that fails to save end, and its launcher end the others."""
        try:
            yield
        except BaseException:
            # They wait for this rank inside of DeepSpeed, where they can't answer: code that runs
            # after this error must not wait for them.
            self._context.distributed.close()
            raise

    def load(self, path: Path, state: TrialState, *, own_options: bool = False) -> None:
        """Put everything back, but for hyperparameters with `own_options`."""
        dist = self._context.distributed
        if is_unverified(path):
            raise PermissionError(f"{untrusted(path)}: {NO_DIGEST}")
        # With other ranks than then, one reads what another of them saved.
        found = keep_trying(lambda: list(path.glob(_OF_RANK.format("*"))))
        saved_by = max(len(found), 1)
        own = path / _OF_RANK.format(dist.rank % saved_by)
        saved: dict[str, Any] = keep_trying(lambda: files.read_file(own) if own.exists() else {})
        self._hooks.on_checkpoint_load_start(saved)
        engines = self._context.models
        options = Options(
            [engine.optimizer for engine in engines if engine.optimizer is not None],
            [engine.lr_scheduler for engine in engines if engine.lr_scheduler is not None],
        )
        load = partial(self._trial.load, self._context, path)
        try:
            self._with_retries(load)
        except AssertionError:  # DeepSpeed takes a file that it can't see now for missing
            if self._context.distributed.size > 1:
                raise
            self._with_retries(load)
        if own_options:
            options.apply()
        restore_callbacks(self._hooks.callbacks, saved.get("callbacks") or {})
        restore_rng(dist, saved.get("rng_state"), saved_by=saved_by)
        if saved_by == dist.size:  # else they are another rank's
            _restore_activation_rng(saved.get("activation_rng_states") or {})


def _restore_activation_rng(saved: Mapping[str, Any]) -> None:
    """Go on drawing where the checkpoint stopped, from the states that the trial still has.

    Those that it has added since keep their seeds, as do devices of another kind.
    """
    tracker = get_cuda_rng_tracker()
    now = tracker.get_states()
    known = {
        name: state
        for name, state in saved.items()
        if name in now and state.shape == now[name].shape
    }
    tracker.set_states({**now, **known})


@contextmanager
def _for_nobody_else_to_write() -> Iterator[None]:
    """Make files that only their owner can write: DeepSpeed will unpickle them."""
    before = os.umask(0o077)
    os.umask(before | 0o022)
    try:
        yield
    finally:
        os.umask(before)
