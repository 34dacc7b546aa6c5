"""Small trainings: by hand, and in a job."""

from __future__ import annotations

from typing import Any

from detslurm import pytorch
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression


def fit(kind: type[Regression] = Regression, aggregation: int = 1, **arguments: Any) -> Any:
    """Train by hand."""
    with pytorch.init(aggregation_frequency=aggregation) as context:
        trial = kind(context)
        pytorch.Trainer(trial, context).fit(**arguments)
    return trial


def in_job(managed: Managed, kind: type[Regression] = Regression, **arguments: Any) -> Any:
    """Train in a job."""
    with managed.run(), pytorch.init() as context:
        trial = kind(context)
        pytorch.Trainer(trial, context).fit(**arguments)
    return trial


class Scripted(Regression):
    """Its validations give these losses in turn."""

    losses_of_validations = (3.0, 2.0, 2.0, 1.0, 4.0)

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.script = iter(self.losses_of_validations)

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {"loss": next(self.script), "accuracy": 1}

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch


def returning(metrics: dict[str, Any]) -> type[Regression]:
    """A trial whose validations give these metrics."""

    class Returning(Scripted):
        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            return metrics

    return Returning
