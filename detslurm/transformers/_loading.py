"""What an optimizer was built with, kept while a saved state is loaded into it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from detslurm.frameworks.optimizer_options import Options


class Loading:
    """Notes the options of optimizers as they are built, until training begins.

    Between building the optimizer and loading it the Trainer has no event, and torch has no hook
    for optimizers that are still to come: `load_state_dict` is stood in for until `end`.
    """

    def __init__(self) -> None:
        self._load = load = Optimizer.load_state_dict
        self._built: dict[int, tuple[Optimizer, Options]] = {}

        @functools.wraps(load)
        def noting(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
            # Only the first time: Accelerate loads its own state, and then comes a saved one.
            self._built.setdefault(id(optimizer), (optimizer, Options([optimizer], [])))
            load(optimizer, dict(state_dict))

        Optimizer.load_state_dict = noting

    def end(self, scheduler: Any) -> None:
        """Give optimizers their own options back, and the loaded schedule its own rates.

        Where the schedule stands is kept.
        """
        Optimizer.load_state_dict = self._load
        for optimizer, options in self._built.values():
            options.apply()
            groups = optimizer.param_groups
            if len(getattr(scheduler, "base_lrs", ())) == len(groups):
                scheduler.base_lrs = [group["initial_lr"] for group in groups]
