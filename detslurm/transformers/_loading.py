"""An optimizer's first settings, kept while a saved state is loaded into it."""

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
        # The optimizers are among what they map to: no other one gets their ids.
        self._built: dict[int, tuple[Optimizer, Options]] | None = {}

        @functools.wraps(load)
        def noting(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
            # Only the first time: Accelerate loads its own state, and then comes a saved state.
            if self._built is not None:
                self._built.setdefault(id(optimizer), (optimizer, Options([optimizer], [])))
            load(optimizer, dict(state_dict))

        self._noting = noting
        Optimizer.load_state_dict = noting

    def close(self) -> None:
        """Note nothing more."""
        self._built = None
        # Another object's may stand in for it: then it stays below that, and does nothing.
        if Optimizer.load_state_dict is self._noting:
            Optimizer.load_state_dict = self._load

    def end(self, optimizer: Any, scheduler: Any) -> bool:
        """Give an optimizer its own options back, and its loaded schedule its own rates.

        Where the schedule stands is kept. False if it may have loaded others in a way of its own.
        """
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's has it so
        _, options = (self._built or {}).get(id(inner), (None, None))
        self.close()
        if options is None:
            return getattr(type(inner), "load_state_dict", None) is Optimizer.load_state_dict
        options.apply()
        groups = inner.param_groups
        if len(getattr(scheduler, "base_lrs", ())) == len(groups):
            scheduler.base_lrs = [group.get("initial_lr", group["lr"]) for group in groups]
        return True
