"""Automatic mixed precision, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from detslurm.pytorch import Batch
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, same, weights


class Amp(Regression):
    """In automatic mixed precision."""

    def __init__(self, context: Any) -> None:
        context.experimental.use_amp()
        super().__init__(context)
        self.types: list[torch.dtype] = []
        self.norms: list[float] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        output = self.model(batch[0])
        self.types.append(output.dtype)
        loss = nn.functional.mse_loss(output.float(), batch[1])
        self.context.backward(loss)

        def clip(parameters: Any) -> None:
            self.norms.append(float(nn.utils.clip_grad_norm_(parameters, 1.0)))

        self.context.step_optimizer(self.optimizer, clip_grads=clip)
        return loss

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        self.types.append(self.model(batch[0]).dtype)
        return super().evaluate_batch(batch, batch_idx)


class Manual(Amp):
    """The same, with a scaler and autocast of its own."""

    def __init__(self, context: Any) -> None:
        self.scaler = context.wrap_scaler(torch.amp.GradScaler("cpu"))
        Regression.__init__(self, context)
        self.types, self.norms = [], []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        with torch.autocast("cpu"):
            output = self.model(batch[0])
            loss = nn.functional.mse_loss(output.float(), batch[1])
        self.context.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)

        def clip(parameters: Any) -> None:
            self.norms.append(float(nn.utils.clip_grad_norm_(parameters, 1.0)))

        self.context.step_optimizer(self.optimizer, clip_grads=clip, scaler=self.scaler)
        self.scaler.update()
        return loss


class Apex(Amp):
    """The same by the arguments of apex."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, context: Any) -> None:
        Regression.__init__(self, context)
        self.types, self.norms = [], []
        context.configure_apex_amp(self.model, self.optimizer, **self.options)


class TestApex:
    """`configure_apex_amp()`, after the models are wrapped."""

    def test_its_levels(self, root: Path) -> None:
        """O1 and O2 are what `use_amp()` does, O0 is float32, O3 is half precision throughout."""
        found: dict[str, Any] = {}
        for level in ("amp", "O0", "O1", "O2", "O3"):
            kind = (
                Amp if level == "amp" else type(level, (Apex,), {"options": {"opt_level": level}})
            )
            with torch.random.fork_rng():
                found[level] = fit(kind, max_length=Batch(4))
        assert found["O1"].norms == found["O2"].norms == found["amp"].norms
        assert same(weights(found["O1"]), weights(found["amp"]))
        dtypes = {level: {*trial.types} for level, trial in found.items()}
        assert dtypes["O1"] == dtypes["O2"] == {torch.bfloat16}
        assert (dtypes["O0"], dtypes["O3"]) == ({torch.float32}, {torch.float16})
        half = next(found["O3"].model.parameters())
        whole = next(found["O2"].model.parameters())
        assert (half.dtype, whole.dtype) == (torch.float16, torch.float32)

    def test_its_loss_scale(self, managed: Managed) -> None:
        """A fixed one stays over a restart, a dynamic one keeps to its bounds."""
        fixed = type("Fixed", (Apex,), {"options": {"loss_scale": 128.0}})
        trial = in_job(managed, fixed)
        assert trial.context._amp.scaler.get_scale() == 128.0
        assert managed.checkpoints()
        dynamic = type("Dynamic", (Apex,), {"options": {"min_loss_scale": 4, "max_loss_scale": 8}})
        scaler = fit(dynamic, max_length=Batch(2)).context._amp.scaler
        assert scaler.get_scale() == 8.0


class TestMixedPrecision:
    """On the CPU: bfloat16 and a scaler."""

    @pytest.mark.parametrize("aggregation", [1, 3])
    def test_automatic_and_manual_are_the_same(self, root: Path, aggregation: int) -> None:
        """Forward passes in low precision, gradients unscaled before clipping, one scaler update
        a step; evaluation in low precision, too."""
        with torch.random.fork_rng():
            automatic = fit(Amp, aggregation, max_length=Batch(6))
        with torch.random.fork_rng():
            manual = fit(Manual, aggregation, max_length=Batch(6))
        assert set(automatic.types) == {torch.bfloat16}
        assert automatic.norms == manual.norms
        assert len(automatic.norms) == 6 // aggregation
        assert max(automatic.norms) < 1000  # unscaled: the scale is 65536
        assert same(weights(automatic), weights(manual))

    def test_infinite_gradients_skip_the_step(self, root: Path) -> None:
        """The scale is halved and the weights stay."""

        class Overflowing(Amp):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                before = [p.clone() for p in self.model.parameters()]
                loss = self.model(batch[0]).float().sum() * float("inf")
                self.context.backward(loss)
                self.context.step_optimizer(self.optimizer)
                assert all(map(torch.equal, before, self.model.parameters()))
                return {"loss": 0.0}

        trial = fit(Overflowing, max_length=Batch(2))
        assert trial.context._amp.scaler.get_scale() == 65536 / 4

    @pytest.mark.parametrize("kind", [Amp, Manual])
    def test_a_first_step_left_out_raises_no_warning(self, root: Path, kind: type[Any]) -> None:
        """Half precision often begins so; torch takes it for a loop that steps schedulers first."""

        class Overflows(kind):  # type: ignore[misc]
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                context._amp.scaler._init_scale = float("inf")

        assert fit(Overflows, max_length=Batch(2)).context.lr_schedulers

    def test_a_step_reaches_the_next_forward_pass_of_its_batch(self, root: Path) -> None:
        """Autocast keeps what it has cast: a generator would train against old weights."""

        class Twice(Amp):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                self.model.eval()  # no dropout: the weights alone decide
                super().train_batch(batch, epoch_idx, batch_idx)
                here = self.model(batch[0])
                torch.clear_autocast_cache()
                assert torch.equal(here, self.model(batch[0]))
                return {"loss": 0.0}

        fit(Twice, max_length=Batch(2))

    def test_the_scaler_is_saved(self, managed: Managed) -> None:
        """A trial that goes on has its scale."""

        class Scaled(Amp):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                context._amp.scaler = torch.amp.GradScaler("cpu", init_scale=512.0)

        in_job(managed, Scaled)
        latest = managed.view().latest_checkpoint
        assert latest is not None
        trial = in_job(managed, Amp, latest_checkpoint=latest.uuid)
        assert trial.context._amp.scaler.get_scale() == 512

    def test_a_scaler_that_was_disabled(self, managed: Managed) -> None:
        """It had nothing to save: a trial that goes on with one begins with its own scale."""

        class Disabled(Amp):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                context._amp.scaler = torch.amp.GradScaler("cpu", enabled=False)

        in_job(managed, Disabled)
        latest = managed.view().latest_checkpoint
        assert latest is not None
        in_job(managed, Amp, latest_checkpoint=latest.uuid)
