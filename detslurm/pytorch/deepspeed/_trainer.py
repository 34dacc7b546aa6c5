"""The Trainer of DeepSpeed's trials: the same loop, with another driver."""

from __future__ import annotations

from detslurm.pytorch import _trainer
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
from detslurm.pytorch.deepspeed._driver import EngineDriver
from detslurm.pytorch.deepspeed._trial import DeepSpeedTrial


class Trainer(_trainer.Trainer):
    """Trains a `DeepSpeedTrial`; made and used inside `deepspeed.init()`.

    Its methods are those of `pytorch.Trainer`. A batch is one step of the optimizer: the records of
    `train_batch_size`, in as many micro-batches as gradients are accumulated over.

    Args:
        trial: The trial.
        context: The result of `deepspeed.init()`, with which the trial was made.

    Raises:
        TypeError: If `trial` is not a `DeepSpeedTrial`.
    """

    _kind = DeepSpeedTrial
    _driver = EngineDriver

    def __init__(self, trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
        super().__init__(trial, context)
