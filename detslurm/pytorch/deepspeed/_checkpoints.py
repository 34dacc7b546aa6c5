"""Save a DeepSpeedTrial as a checkpoint, every rank its part, and take it up from one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepspeed.runtime.activation_checkpointing.checkpointing import get_cuda_rng_tracker

from detslurm.core import Context
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._rng import rng_state
from detslurm.pytorch._state import TrialState
from detslurm.pytorch.checkpointing import _checkpoint_dir as files
from detslurm.pytorch.checkpointing._options import Options
from detslurm.pytorch.checkpointing._state_dict import restore_callbacks, restore_rng
from detslurm.pytorch.checkpointing._writing import Checkpoints, CheckpointWriter
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._trial import DeepSpeedTrial

logger = logging.getLogger("detslurm.pytorch")

_OF_RANK = "det_state_dict_rank{}.pth"


class EngineCheckpoints(Checkpoints):
    """The checkpoints of a `DeepSpeedTrial`; nothing is written in the background."""

    def __init__(
        self,
        trial: DeepSpeedTrial,
        context: DeepSpeedTrialContext,
        core: Context,
        hooks: Hooks,
        *,
        is_trainer: bool,
    ) -> None:
        self._trial, self._context, self._hooks = trial, context, hooks
        self._writer = CheckpointWriter(
            trial, context, core, hooks, kind="DeepSpeedTrial", is_trainer=is_trainer
        )

    def save(self, state: TrialState, *, leaving: bool = False, alone: bool = False) -> str | None:
        """Save everything; returns the storage id, None where there is none.

        With `alone` there is none unless this is the only rank: engines save together.
        """
        dist = self._context.distributed
        if alone and dist.size > 1:
            logger.warning("no checkpoint is saved: parts of the state are on other ranks")
            return None
        own = {
            "callbacks": {name: one.state_dict() for name, one in self._hooks.callbacks.items()},
            "rng_state": rng_state(),
            # Model-parallel layers draw from these, beside the generators of all libraries.
            "activation_rng_states": get_cuda_rng_tracker().get_states(),
        }
        self._hooks.on_checkpoint_save_start(own)
        counters = replace(state, ranks=dist.size, last_ckpt=state.batches_trained)

        def fill(path: Path) -> None:
            with _for_nobody_else_to_write(), self._ending_alone():
                files.save(own, path / _OF_RANK.format(dist.rank))
                self._trial.save(self._context, path)

        def write() -> str:
            return self._writer.write(counters, fill, shard=dist.size > 1)

        # Several ranks can't go on without a checkpoint that one of them has no space for.
        uuid = write() if dist.size > 1 else self._writer.kept(write, leaving=leaving)
        if uuid is not None:
            self._hooks.on_checkpoint_upload_end(uuid)
            state.ranks, state.last_ckpt = dist.size, state.batches_trained
        return uuid

    @contextmanager
    def _ending_alone(self) -> Iterator[None]:
        """Let a rank that fails to save end, and its launcher end the others."""
        try:
            yield
        except BaseException:
            # They wait for this rank inside of DeepSpeed, where nobody can ask them anything: what
            # comes after this error must not wait for their answer.
            self._context.distributed.close()
            raise

    def load(self, path: Path, state: TrialState, *, own_options: bool = False) -> None:
        """Put everything back, but for hyperparameters with `own_options`."""
        dist = self._context.distributed
        # With other ranks than then, one reads what another of them saved.
        saved_by = max(len(list(path.glob(_OF_RANK.format("*")))), 1)
        own = path / _OF_RANK.format(dist.rank % saved_by)
        saved: dict[str, Any] = files.read_file(own) if own.exists() else {}
        self._hooks.on_checkpoint_load_start(saved)
        engines = self._context.models
        options = Options(
            [engine.optimizer for engine in engines if engine.optimizer is not None],
            [engine.lr_scheduler for engine in engines if engine.lr_scheduler is not None],
        )
        self._trial.load(self._context, path)
        if own_options:
            options.apply()
        restore_callbacks(self._hooks.callbacks, saved.get("callbacks") or {})
        restore_rng(dist, saved.get("rng_state"), saved_by=saved_by)
        if saved_by == dist.size:  # else they are another rank's
            _restore_activation_rng(saved.get("activation_rng_states") or {})


def _restore_activation_rng(saved: Mapping[str, Any]) -> None:
    """Go on drawing where the checkpoint stopped, from the states that the trial still has.

    Those that it has added since keep their seeds, and so does one of another kind of device.
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
