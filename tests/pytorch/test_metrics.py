"""What `train_batch()` and `evaluate_batch()` may return, and what becomes of it."""

from __future__ import annotations

import functools
import logging
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from detslurm.pytorch import Batch
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression


class TestMetrics:
    """What becomes of what train_batch returns."""

    def test_a_bare_tensor_is_the_loss(self, managed: Managed) -> None:
        """As older code returns it."""

        class Bare(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                return super().train_batch(batch, epoch_idx, batch_idx)["loss"]

        trial = in_job(managed, Bare)
        (row,) = managed.metrics("training")
        assert row.metrics["loss"] == pytest.approx(sum(trial.losses) / 20, rel=1e-12)

    def test_averages(self, managed: Managed) -> None:
        """None doesn't count, text averages to None, arrays count as their mean, and a tensor that
        changes later was copied. What every batch had is kept, too."""

        class Odd(Regression):
            total = torch.zeros(())

            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                super().train_batch(batch, epoch_idx, batch_idx)
                self.total += 1
                return {
                    "rare": batch_idx if batch_idx % 2 else None,
                    "text": "x",
                    "vector": torch.tensor([1.0, batch_idx]),
                    "half": torch.ones(2).bfloat16(),
                    "list": [1, 2],
                    "tensors": [self.total.clone().requires_grad_(), torch.zeros(())],
                    "nested": {"a": torch.ones(1)},
                    "ragged": [1, [2]],
                    "epochs": 7,
                    "total": self.total,
                    **({"late": 1} if batch_idx > 10 else {}),
                }

        in_job(managed, Odd)
        (row,) = managed.metrics("training")
        assert row.metrics == {
            "batches": 20, "epochs": 7, "rare": 10, "text": None,
            "vector": 5.25, "half": 1, "list": 1.5,
            "tensors": 5.25, "nested": None, "ragged": None, "total": 10.5, "late": 1,
        }  # fmt: skip
        assert row.batch is not None and len(row.batch) == 20
        assert row.batch[2] == {
            "rare": None, "text": "x", "vector": [1.0, 2.0], "half": [1, 1], "list": [1, 2],
            "tensors": [3, 0], "nested": {"a": [1]}, "ragged": [1, [2]], "epochs": 7, "total": 3,
        }  # fmt: skip

    def test_a_tensor_of_a_validation_that_changes_later(self, managed: Managed) -> None:
        """Each batch has its own value of it."""

        class Counting(Regression):
            total = torch.zeros(())

            def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
                self.total += 1
                return super().evaluate_batch(batch, batch_idx) | {"total": self.total}

        in_job(managed, Counting)
        (row,) = managed.metrics("validation")
        assert row.metrics["total"] == (1 + 2 + 3 + 4) / 4

    def test_the_log(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        """Each report is a line; a metric that turns NaN is a warning, once."""

        class Diverging(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                super().train_batch(batch, epoch_idx, batch_idx)
                return {"loss": math.nan if batch_idx > 3 else 0.5, "text": "x"}

        with caplog.at_level(logging.INFO, "detslurm.pytorch"):
            fit(Diverging, max_length=Batch(8), reporting_period=Batch(2))
        lines = [line for line in caplog.messages if line.startswith("batch ")]
        assert [line.split(" (")[0] for line in lines] == [f"batch {n} of 8" for n in (2, 4, 6, 8)]
        assert re.search(r": loss 0.5, [\d.]+ batches/s, \d+ records/s$", lines[0])
        assert "loss nan" in lines[3]
        (warning,) = [line for line in caplog.messages if "NaN" in line]
        assert warning.startswith("loss is NaN, averaged over the last 2 batches")

    def test_older_evaluate_batch(self, managed: Managed) -> None:
        """It may take the batch alone."""

        class Older(Regression):
            def evaluate_batch(self, batch: Any) -> Any:  # type: ignore[override]
                return super().evaluate_batch(batch, 0)

        in_job(managed, Older)
        assert managed.steps("validation") == [20]

    def test_arguments_go_by_their_names(self, root: Path) -> None:
        """An override may have them in another order, or under names of its own."""

        class OtherOrder(Regression):
            def train_batch(  # type: ignore[override]
                self, batch_idx: int, epoch_idx: int, batch: Any
            ) -> Any:
                assert (epoch_idx, batch_idx) == (batch_idx // 12, len(self.losses))
                return super().train_batch(batch, epoch_idx, batch_idx)

            def evaluate_batch(self, batch: Any, **others: Any) -> Any:  # type: ignore[override]
                assert not others
                return super().evaluate_batch(batch, 0)

        class Named(Regression):
            def train_batch(self, data: Any, epoch: int, number: int) -> Any:
                assert (epoch, number) == (number // 12, len(self.losses))
                return super().train_batch(data, epoch, number)

            def evaluate_batch(self, data: Any, number: int) -> Any:
                return super().evaluate_batch(data, number)

        def decorated(method: Any) -> Any:
            return functools.wraps(method)(lambda *args: method(*args))

        class Decorated(Regression):
            train_batch = decorated(Regression.train_batch)
            evaluate_batch = decorated(Regression.evaluate_batch)

        for kind in (OtherOrder, Named, Decorated):
            assert len(fit(kind, max_length=Batch(14)).losses) == 14

    def test_batches_of_a_type_of_their_own(
        self, root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Records are counted for the log; what can't be counted does no harm."""

        class Wrapped(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                return super().train_batch(batch, epoch_idx, batch_idx)

            def get_batch_length(self, batch: Any) -> int:
                raise TypeError("Data of incorrect type")

        with caplog.at_level(logging.WARNING, "detslurm.pytorch"):
            fit(Wrapped, max_length=Batch(3))
        assert caplog.text.count("records are not counted") == 1
