"""Mixed precision: what a plain loop computes, to the last bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from detslurm.pytorch import Batch
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, network, numbers, same, weights


class Ordered(Regression):
    """A training that a loop of a few lines repeats."""

    shuffle = False
    low = torch.bfloat16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.model(x)
        return output

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        output = self.forward(batch[0])
        assert output.dtype is self.low
        loss = nn.functional.mse_loss(output.float(), batch[1])
        self.context.backward(loss)
        self.step()
        self.losses.append(loss.item())
        return {"loss": loss}

    def step(self) -> None:
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda own: nn.utils.clip_grad_norm_(own, 1.0)
        )


class Automatic(Ordered):
    """With `use_amp()`: half precision on a GPU, bfloat16 on a CPU, and a scaler."""

    def __init__(self, context: Any) -> None:
        context.experimental.use_amp()
        super().__init__(context)
        self.low = torch.get_autocast_dtype(context.device.type)


class ByHand(Ordered):
    """The same with the trial's own scaler."""

    def __init__(self, context: Any) -> None:
        self.scaler = context.wrap_scaler(torch.amp.GradScaler(context.device.type))
        super().__init__(context)
        self.low = torch.get_autocast_dtype(context.device.type)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        with torch.autocast(self.context.device.type):
            loss = nn.functional.mse_loss(self.model(batch[0]).float(), batch[1])
        self.context.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        self.context.step_optimizer(
            self.optimizer,
            clip_grads=lambda own: nn.utils.clip_grad_norm_(own, 1.0),
            scaler=self.scaler,
        )
        self.scaler.update()
        self.losses.append(loss.item())
        return {"loss": loss}


class Bfloat16(Ordered):
    """In bfloat16, which needs no scaler."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.context.device.type, dtype=torch.bfloat16):
            output: torch.Tensor = self.model(x)
        return output


def plain(device: torch.device, batches: int, dtype: torch.dtype | None, scaled: bool) -> Any:
    """Losses and weights of the same training in plain PyTorch."""
    torch.manual_seed(1)
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    scaler = torch.amp.GradScaler(device.type, enabled=scaled)
    x_all, y_all = (part.to(device) for part in numbers().tensors)
    torch.empty((), dtype=torch.int64).random_()  # as every iterator of a torch DataLoader does
    losses = []
    for index in range(batches):
        start = index * 4 % len(x_all)
        with torch.autocast(device.type, dtype=dtype):
            output = model(x_all[start : start + 4])
            loss = nn.functional.mse_loss(output.float(), y_all[start : start + 4])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return losses, [value.clone() for value in model.state_dict().values()]


@pytest.mark.filterwarnings(
    "ignore:Detected call of `lr_scheduler.step:UserWarning:tests.gpu.test_precision"
)
@pytest.mark.parametrize("kind", [Automatic, ByHand, Bfloat16])
def test_a_plain_loop_computes_the_same(
    root: Path, device: torch.device, kind: type[Ordered]
) -> None:
    """AMP done here, AMP by the trial, bfloat16 by the trial: losses and weights."""
    trial = fit(kind, max_length=Batch(12))
    bf16 = kind is Bfloat16
    losses, state = plain(device, 12, torch.bfloat16 if bf16 else None, not bf16)
    assert trial.losses == losses
    assert same(weights(trial), state)


def test_an_overflow_skips_the_step_and_halves_the_scale(root: Path, device: torch.device) -> None:
    """Where half precision really overflows: the weights stay, and the next batch trains."""

    class Overflows(Automatic):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context._amp.scaler = torch.amp.GradScaler(context.device.type, init_scale=256.0)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            before = [p.detach().clone() for p in self.model.parameters()]
            large = 1e6 if batch_idx == 1 else 1.0
            # A bfloat16 of a CPU would hold the product.
            factor = large if self.context.device.type == "cuda" or large == 1 else float("inf")
            loss = (self.model(batch[0] * large).float() * factor).square().mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            stays = all(map(torch.equal, before, self.model.parameters()))
            assert stays is (batch_idx == 1)
            return {"scale": self.context._amp.scaler.get_scale()}

    trial = fit(Overflows, max_length=Batch(3))
    assert trial.context._amp.scaler.get_scale() == 128


def test_the_scale_goes_on_where_it_was(managed: Managed) -> None:
    """A trial that goes on has the scale and the count of good steps."""

    class Growing(Automatic):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context._amp.scaler.set_growth_interval(3)

    first = in_job(managed, Growing)
    latest = managed.view().latest_checkpoint
    assert latest is not None
    again = in_job(managed, Automatic, latest_checkpoint=latest.uuid)
    kept, found = (trial.context._amp.scaler.state_dict() for trial in (first, again))
    assert found == kept
    assert (found["scale"], found["growth_interval"]) != (2.0**16, 2000)


def test_a_step_reaches_the_next_forward_pass_of_its_batch(root: Path) -> None:
    """A generator trains against the discriminator of now, not the one that autocast keeps."""

    class Twice(Automatic):
        def step(self) -> None:
            super().step()
            self.model.eval()
            x = torch.ones(4, 8, device=self.context.device)
            here = self.model(x)
            torch.clear_autocast_cache()
            assert torch.equal(here, self.model(x))
            self.model.train()

    fit(Twice, max_length=Batch(2))


def test_a_compiled_model(root: Path, gpu: torch.device) -> None:
    """Inductor's kernels, under AMP."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("GPU: triton is not installed, which torch.compile needs")

    class Compiled(Automatic):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.inner, self.model = self.model, torch.compile(self.model)

    trial = fit(Compiled, max_length=Batch(8))
    # Its dropout draws other numbers, so that the first loss is but near.
    assert trial.losses[0] == pytest.approx(fit(Automatic, max_length=Batch(1)).losses[0], rel=0.5)
    assert all(value.isfinite().all() for value in trial.inner.parameters())
