"""What `fit()` refuses, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from detslurm import errors, pytorch
from detslurm.pytorch import Batch, Epoch
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, numbers


class TestErrors:
    """Each documented error has its type and says what to do."""

    def test_arguments(self, root: Path) -> None:
        """Outside of jobs."""
        for arguments, kind, said in (
            ({}, ValueError, "max_length must be defined in local training mode"),
            ({"max_length": 5}, TypeError, "max_length must be pytorch.Batch"),
            ({"max_length": Batch([1, 2])}, TypeError, "with an int"),
            ({"max_length": Batch(1), "validation_period": 3}, TypeError, "validation_period"),
            ({"max_length": Batch(1), "checkpoint_policy": "some"}, ValueError, "best, all, none"),
        ):
            with pytest.raises(kind, match=said):
                fit(**arguments)

    def test_fit_twice(self, root: Path) -> None:
        """The second training would report the batches of the first one again."""
        with pytorch.init() as context:
            trainer = pytorch.Trainer(Regression(context), context)
            trainer.fit(max_length=Batch(1))
            with pytest.raises(RuntimeError, match=r"another init\(\)"):
                trainer.fit(max_length=Batch(2))

    def test_test_mode_in_a_job(self, managed: Managed) -> None:
        """It is for trying things out by hand."""
        with pytest.raises(ValueError, match="only supported in local training mode"):
            in_job(managed, test_mode=True)

    def test_trials_that_lack_something(self, root: Path) -> None:
        """A model, an optimizer, one way to evaluate."""

        class NoModel(Regression):
            def __init__(self, context: Any) -> None:
                pass

        class NoOptimizer(Regression):
            def __init__(self, context: Any) -> None:
                context.wrap_model(torch.nn.Linear(1, 1))

        class Both(Regression):
            def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
                return {}

        class Neither(Regression):
            evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        for kind, said in (
            (NoModel, "has no model"),
            (NoOptimizer, "has no optimizer"),
            (Both, "exactly one of .* not both"),
            (Neither, "exactly one of .* not none"),
        ):
            with pytest.raises(errors.InvalidExperimentException, match=said):
                fit(kind, max_length=Batch(1))

    def test_loaders_of_another_kind(self, root: Path) -> None:
        """They are refused with the way to allow them, and start over when they end."""

        class Foreign(Regression):
            def build_training_data_loader(self) -> Any:
                return torch.utils.data.DataLoader(numbers(12), batch_size=4)

        class Allowed(Foreign):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                context.experimental.disable_dataset_reproducibility_checks()

        class NoLoader(Allowed):
            def build_validation_data_loader(self) -> Any:
                return 12

        class Listed(Allowed):
            def build_training_data_loader(self) -> Any:
                return list(super().build_training_data_loader())

            def build_validation_data_loader(self) -> Any:
                return Source(self.build_training_data_loader())

        class Source:
            """An iterable without a length, as DALI's are."""

            generator = 5

            def __init__(self, batches: list[Any]) -> None:
                self.batches = batches

            def __iter__(self) -> Any:
                return iter(self.batches)

        class Once(Allowed):
            def build_training_data_loader(self) -> Any:
                return iter(super().build_training_data_loader())

        with pytest.raises(RuntimeError, match="disable_dataset_reproducibility_checks"):
            fit(Foreign, max_length=Batch(1))
        with pytest.raises(RuntimeError, match=r"build_validation_data_loader.* not int"):
            fit(NoLoader, max_length=Batch(1))
        with pytest.raises(ValueError, match="a second time"):
            fit(Once, max_length=Batch(4))
        assert len(fit(Listed, max_length=Epoch(2)).losses) == 6
        trial = fit(Allowed, max_length=Epoch(2))
        assert len(trial.losses) == 6
        assert trial.seen[:3] == trial.seen[3:]

    def test_what_the_methods_return(self, root: Path) -> None:
        """Metrics are dicts, with the same names in every validation batch."""

        class NoMetrics(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                super().train_batch(batch, epoch_idx, batch_idx)

        class NoDict(Regression):
            def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
                return torch.tensor(1.0)

        class Changing(Regression):
            def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
                return {f"loss{batch_idx}": 1}

        class Empty(Regression):
            def build_validation_data_loader(self) -> Any:
                return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.empty(0, 8)))

        for kind, error, said in (
            (NoMetrics, TypeError, r"train_batch\(\) must return a dict"),
            (NoDict, TypeError, r"evaluate_batch\(\) must return a dict"),
            (Changing, ValueError, "same metrics for every batch"),
            (Empty, RuntimeError, "validation data is empty"),
        ):
            with pytest.raises(error, match=said):
                fit(kind, max_length=Batch(1))

    def test_no_training_data(self, root: Path) -> None:
        """Said before the first batch."""

        class Empty(Regression):
            records = 0

        Empty.shuffle = False
        with pytest.raises(ValueError, match="training data is empty"):
            fit(Empty, max_length=Batch(1))

    def test_an_unknown_checkpoint(self, root: Path) -> None:
        """The id is in the message."""
        uuid = "00000000-0000-4000-8000-000000000000"
        with pytest.raises(errors.CheckpointNotFound, match=uuid):
            fit(max_length=Batch(1), latest_checkpoint=uuid)
