"""Checks for mistakes in a trial that raise no error but prevent learning: warned of once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import nn

from detslurm.pytorch._ddp import Replicated

logger = logging.getLogger("detslurm.pytorch")


def explain(err: RuntimeError) -> None:
    """Add what helps here to an error of DDP, whose own advice is about how to construct it, and to
    one of a GPU whose memory is full."""
    text = str(err)
    if isinstance(err, torch.OutOfMemoryError):
        err.add_note(
            "CUDA out of memory: a smaller global_batch_size (with a larger aggregation_frequency),"
            " context.experimental.use_amp(), or fully_shard() on more slots need less of it. In a"
            " search, raise detslurm.InvalidHP instead where the hyperparameters are to blame."
        )
    if "finished reduction in the prior iteration" in text or "ready only once" in text:
        err.add_note(
            "Here that is context.wrap_optimizer(optimizer, backward_passes_per_step=2): the slots"
            " then average gradients at the step, whichever parameters took part, however often."
        )


class SanityChecks:
    """Checks the first steps of a trial's optimizers."""

    def __init__(self, *, is_chief: bool) -> None:
        self._is_chief = is_chief  # its warnings are the same on all ranks
        self._stepped: set[int] = set()
        self._over = False

    def stepping(
        self, optimizer: torch.optim.Optimizer, wrapped: Iterable[torch.optim.Optimizer]
    ) -> None:
        """Check an optimizer before its first step."""
        if id(optimizer) in self._stepped:
            return
        self._stepped.add(id(optimizer))
        if not any(optimizer is own for own in wrapped):
            self._warn(
                "step_optimizer() got an optimizer that was not wrapped: no checkpoint has its"
                " state; use context.wrap_optimizer() in __init__"
            )
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            self._warn(
                "step_optimizer() finds no gradients: call context.backward(loss) before it, and"
                " make the optimizer from the parameters of the wrapped model"
            )

    def ending(self, batches: int, aggregation: int) -> None:
        """Check after the last batch that is asked for now; those of earlier runs are counted."""
        if batches < aggregation:
            self._warn(
                f"no optimizer has stepped so far, so nothing was learned: aggregation_frequency is"
                f" {aggregation}, and there were {batches} batches"
            )

    def reporting(
        self, models: Collection[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        """Check the work before the first report."""
        if self._over:
            return
        self._over = True
        idle = [n for n, one in enumerate(optimizers, 1) if id(one) not in self._stepped]
        if 0 < len(idle) < len(optimizers):
            self._warn(
                f"so far train_batch() has not called context.step_optimizer() for optimizer"
                f" {', '.join(map(str, idle))} of the {len(optimizers)} that were wrapped"
            )
        if not self._stepped:
            self._warn(
                "train_batch() does not call context.step_optimizer(optimizer): nothing is learned"
                " unless it steps on its own, without aggregated gradients and mixed precision"
            )
        if any(isinstance(model, Replicated) and not model.was_called for model in models):
            self._warn(
                "train_batch() does not call a model that wrap_model() returned, so the slots don't"
                " exchange its gradients: write `self.model = context.wrap_model(model)`, and call"
                " self.model"
            )

    def _warn(self, text: str) -> None:
        if self._is_chief:
            logger.warning("%s", text)
