"""The surroundings of a DeepSpeedTrial that is loaded to be used, not trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as torch_dist

from detslurm._base.trust import others_can_change_below
from detslurm.pytorch._base_context import alone
from detslurm.pytorch._init import end_process_group_at_exit
from detslurm.pytorch.deepspeed._connect import connect
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._universal import untrusted


class EngineLoadContext(DeepSpeedTrialContext):
    """The context of a trial that is loaded to be used, not trained: no job, and a single rank.

    Args:
        hparams: The hyperparameters; none by default.
        exp_conf: The experiment's configuration; none by default.

    Raises:
        RuntimeError: If this process is one of several ranks.
    """

    _only_used = True

    def __init__(
        self, hparams: Mapping[str, Any] | None = None, exp_conf: Mapping[str, Any] | None = None
    ) -> None:
        if torch_dist.is_initialized() and torch_dist.get_world_size() > 1:
            raise RuntimeError(
                "a DeepSpeedTrial is loaded in a process of its own, and this is one of"
                f" {torch_dist.get_world_size()} ranks: go on there with a Trainer's"
                " fit(latest_checkpoint=...)"
            )
        super().__init__(**alone(hparams, exp_conf))
        if connect(self):
            end_process_group_at_exit()


def refuse_untrusted(folder: Path, options: Mapping[str, Any]) -> None:
    """Raises `PermissionError` where others can change what DeepSpeed unpickles.

    `weights_only=False` declares the checkpoint trusted.
    """
    if options.get("weights_only") is not False and others_can_change_below(folder):
        raise PermissionError(
            f"{untrusted(folder)}, or load it with torch_load_kwargs={{'weights_only': False}}"
        )
