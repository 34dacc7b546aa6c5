"""Whatever the loader, the schedule and the places where it was interrupted: a trial that goes on
computes what one that was not interrupted computes, to the last bit."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, Dataset, RandomSampler

import detslurm as det
from detslurm import pytorch
from detslurm._base.flag import PreemptFlag
from detslurm.pytorch import Batch
from detslurm.pytorch._rng import rng_state
from detslurm.store import Store, fold_trial
from tests.pytorch.fitting import fit
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, network, numbers

# What torch says of two workers where a test may use one CPU.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

LENGTH = 20
MODES = list(pytorch.LRScheduler.StepMode)


@dataclass(frozen=True)
class Case:
    """One kind of training, drawn by a seed; and the batches during which it is preempted."""

    records: int
    batch_size: int
    loader: dict[str, Any]
    own_sampler: bool
    aggregation: int
    mode: pytorch.LRScheduler.StepMode
    frequency: int
    amp: str
    background: bool
    stops: list[int] = field(compare=False)

    @classmethod
    def drawn(cls, seed: int) -> Case:
        draw = random.Random(seed)
        # Every mode, aggregation and kind of mixed precision has its turn; the rest is chance.
        workers = draw.choice([0, 0, 1, 2])
        own_sampler = draw.random() < 0.3
        loader: dict[str, Any] = {"num_workers": workers}
        if workers:
            loader["persistent_workers"] = draw.random() < 0.5
        if not own_sampler:
            loader |= {"shuffle": draw.random() < 0.8, "drop_last": draw.random() < 0.5}
        records, batch_size = draw.randint(9, 40), draw.randint(2, 6)
        return cls(
            records=records + (records % batch_size == 1),  # batch norm needs two
            batch_size=batch_size,
            loader=loader,
            own_sampler=own_sampler,
            aggregation=1 + seed % 3,
            mode=MODES[seed % 4],
            frequency=draw.randint(1, 3),
            amp=("", "automatic", "by hand")[seed // 2 % 3],
            background=draw.random() < 0.3,
            stops=sorted(draw.sample(range(1, LENGTH), draw.randint(1, 3) if workers < 2 else 1)),
        )


class Augmented(Dataset):  # type: ignore[misc]
    """Numbers that are disturbed when they are read."""

    def __init__(self, count: int) -> None:
        self.numbers = numbers(count)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        x, y = self.numbers[index]
        return x + 0.01 * torch.randn(8), y, index


class Drawn(Regression):
    """Trains as a case says, and keeps all that it depends on after every batch."""

    def __init__(self, context: Any, case: Case) -> None:
        self.context, self.case = context, case
        self.scaler: Any = None
        if case.amp == "automatic":
            context.experimental.use_amp()
            self.scaler = context._amp.scaler
        elif case.amp == "by hand":
            self.scaler = context.wrap_scaler(
                torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
            )
        if case.background:
            context.experimental.save_in_background()
        self.model = context.wrap_model(network())
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
        self.scheduler = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95), case.mode, case.frequency
        )
        self.history: list[Any] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        x, y, indices = batch
        self.history.append((batch_idx, epoch_idx, indices.tolist(), self.state()))
        x = x + 0.01 * random.random() + 0.01 * np.random.rand()
        loss = nn.functional.mse_loss(self.model(x).float(), y)
        by_hand = self.case.amp == "by hand"
        self.context.backward(self.scaler.scale(loss) if by_hand else loss)
        self.context.step_optimizer(self.optimizer, scaler=self.scaler if by_hand else None)
        if by_hand:
            self.scaler.update()
        if self.case.mode is pytorch.LRScheduler.StepMode.MANUAL_STEP and batch_idx % 6 == 5:
            self.scheduler.step()
        return loss

    def state(self) -> str:
        """All that the next batch depends on, in words: equal words, equal bits."""
        scaler = self.scaler.state_dict() if self.scaler else None
        gradients = [None if p.grad is None else p.grad.tolist() for p in self.model.parameters()]
        if not any(value for one in gradients if one for value in torch.tensor(one).flatten()):
            gradients = []  # zeros or None: the step was just now
        weights = {name: value.tolist() for name, value in self.model.state_dict().items()}
        lr = self.scheduler.state_dict()
        moments = [
            [float(m.double().sum()) for m in s.values()] for s in self.optimizer.state.values()
        ]
        own = rng_state()
        numpys = [part.tolist() if torch.is_tensor(part) else part for part in own["np_rng_state"]]
        randomness = [own["cpu_rng_state"].tolist(), own["random_rng_state"], numpys]
        return repr((weights, moments, lr, scaler, gradients, randomness))

    def build_training_data_loader(self) -> pytorch.DataLoader:
        data, size = Augmented(self.case.records), self.case.batch_size
        options = self.case.loader
        if self.case.own_sampler:
            options = options | {"batch_sampler": BatchSampler(RandomSampler(data), size, False)}
        else:
            options = options | {"batch_size": size}
        return pytorch.DataLoader(data, **options)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"restless": Restless()}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        x, y = batch
        return {"loss": nn.functional.mse_loss(self.model(x).float(), y)}


class Restless(pytorch.PyTorchCallback):
    """Draws random numbers where an uninterrupted training has nothing to do."""

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        if first_batch_idx:
            self.load_state_dict({})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        random.random(), np.random.rand(), torch.rand(1)


def run(managed: Managed, case: Case, stop: int | None, source: str | None = None) -> Drawn:
    """The next run; it is preempted during a batch, or goes on to the end."""

    class Preempted(Drawn):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx + 1 == stop:
                flag.request_preemption()
            return super().train_batch(batch, epoch_idx, batch_idx)

    flag: PreemptFlag
    with (
        managed.run(source=source) as flag,
        pytorch.init(aggregation_frequency=case.aggregation) as context,
    ):
        trial = Preempted(context, case)
        info = det.get_cluster_info()
        assert info is not None
        pytorch.Trainer(trial, context).fit(
            validation_period=Batch(6),
            checkpoint_period=Batch(8),
            reporting_period=Batch(5),
            checkpoint_policy="none",
            latest_checkpoint=info.latest_checkpoint,
        )
        trial.history.append(trial.state())
    return trial


@pytest.mark.parametrize("seed", range(12))
def test_resumed_is_uninterrupted(root: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Indices, weights, moments, schedule, scale, gathered gradients and random numbers before
    every batch and at the end."""
    case = Case.drawn(seed)
    whole = run(Managed(root, monkeypatch), case, None).history
    managed = Managed(root, monkeypatch)
    resumed: list[Any] = []
    for stop in (*case.stops, None):
        resumed[-1:] = run(managed, case, stop).history
    assert managed.view().steps == LENGTH
    for ours, theirs in zip(resumed, whole, strict=True):
        assert ours[:3] == theirs[:3], case
        assert ours[3:] == theirs[3:], f"batch {ours[0]} differs: {case}"


def test_a_warm_start_from_the_trial_of_the_same_id_in_another_store(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It trains from the first batch on, as from any other trial; what it saves then is its own."""
    case = Case.drawn(0)
    first = Managed(root, monkeypatch)
    run(first, case, None)
    source = first.view().latest_checkpoint
    assert source is not None
    warm = Managed(root / "other", monkeypatch, first.config)
    assert warm.trial.id == first.trial.id
    begun = run(warm, case, 9, source.uuid).history
    assert [batch[0] for batch in begun[:-1]] == [*range(9)]
    going_on = run(warm, case, None).history
    assert [batch[0] for batch in going_on[:-1]] == [*range(9, LENGTH)]


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "loader",
    [
        {"num_workers": 1, "persistent_workers": True},
        {"shuffle": True, "drop_last": True},
        {"sampler": RandomSampler(range(18)), "drop_last": True},
        {"sampler": RandomSampler(range(18), generator=torch.Generator())},
    ],
)
def test_validations_are_those_of_an_uninterrupted_training(
    root: Path, loader: dict[str, Any], at_once: bool
) -> None:
    """Whatever their loader and its workers draw: the same records each time, and no effect on the
    training."""
    data = Augmented(18) if "num_workers" in loader else numbers(18)

    class Validated(Regression):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.validated: list[float] = []

        def build_validation_data_loader(self) -> pytorch.DataLoader:
            return pytorch.DataLoader(data, batch_size=4, **loader)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
            self.validated.append(float(batch[0].sum()))
            return {"loss": 0.0}

    class AtOnce(Validated):
        evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            self.validated += [float(batch[0].sum()) for batch in data_loader]
            return {"loss": 0.0}

    kind = AtOnce if at_once else Validated
    whole = fit(kind, max_length=Batch(9), validation_period=Batch(3))
    first = fold_trial(Store(root).experiment(1).trial(1)).checkpoints[0]
    again = fit(
        kind,
        max_length=Batch(9),
        validation_period=Batch(3),
        latest_checkpoint=str(root / "checkpoints" / first.uuid),
    )
    batches = len(whole.validated) // 3
    assert whole.validated == whole.validated[:batches] * 3
    assert again.validated == whole.validated[batches:]
    assert again.losses == whole.losses[3:]


def test_gradients_that_the_trial_itself_carries_over(root: Path) -> None:
    """They are in the checkpoint whoever gathers them: here every third batch alone steps."""

    class Carries(Regression):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.lr_schedulers.clear()

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
            self.context.backward(loss / 3)
            if batch_idx % 3 == 2:
                self.context.step_optimizer(self.optimizer)
            self.losses.append(loss.item())
            return loss

    whole = fit(Carries, max_length=Batch(9), checkpoint_period=Batch(4))
    first = fold_trial(Store(root).experiment(1).trial(1)).checkpoints[0]
    folder = root / "checkpoints" / first.uuid
    again = fit(Carries, max_length=Batch(9), latest_checkpoint=str(folder))
    assert again.losses == whole.losses[4:]
    last = fold_trial(Store(root).experiment(1).trial(1)).checkpoints[-1]
    assert not list((root / "checkpoints" / last.uuid).glob("gradients*"))
