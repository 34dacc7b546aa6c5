"""The checkpoints of a trial, for a framework that saves and loads them itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base.info import get_cluster_info

if TYPE_CHECKING:
    from detslurm.core import Context


class FrameworkCheckpoints:
    """The checkpoint to go on from, and the state that is kept with each new checkpoint.

    `resumed` is the directory of the checkpoint to go on from, until `close` or the end of the
    context, which also comes where nothing trains; None to begin. `is_own`: this trial has saved
    it. `other_hparams`: the trial with other hyperparameters that has saved it.
    """

    def __init__(
        self, core: Context, user_data: Mapping[str, Any] | None, logger: logging.Logger
    ) -> None:
        self._restored = core._cleanup.enter_context(ExitStack())
        info = get_cluster_info()
        self._more: dict[str, Any] = {}
        if info is not None:
            self._more["trial_id"] = info.trial.trial_id
        if user_data is not None:
            self._more["user_data"] = dict(user_data)
        self.resumed: Path | None = None
        self.is_own = True
        self.other_hparams: int | None = None
        if info is None or info.latest_checkpoint is None:
            return
        warn = logger.warning if core.distributed.rank == 0 else logger.debug
        trial = info.trial
        if not trial._steps_completed:  # the framework would count on from the other trial's steps
            warn(
                "this trial starts warm, and counts from 0: load the weights of checkpoint %s in"
                " your code, from core.checkpoint.restore_path()",
                info.latest_checkpoint,
            )
            return
        saved = core.checkpoint.get_metadata(info.latest_checkpoint).get("trial_id")
        self.is_own = saved in (None, trial.trial_id)
        if not self.is_own and (trial._hparams_changed or not trial.continues):
            self.other_hparams = saved
        restored = core.checkpoint.restore_path(info.latest_checkpoint)
        self.resumed = self._restored.enter_context(restored)

    def metadata(self, steps: int) -> dict[str, Any]:
        """That of a checkpoint after so many steps."""
        return {"steps_completed": steps, **self._more}

    def close(self) -> None:
        """Let go of the checkpoint that training went on from."""
        self._restored.close()
