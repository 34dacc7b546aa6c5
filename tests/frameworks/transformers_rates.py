"""Learning rates of Hugging Face's Trainer from the checkpoint of a trial with other ones.

    transformers_rates.py FOLDER

Run by test_transformers.py in a process with Hugging Face's packages.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from transformers import Trainer, TrainerCallback, TrainingArguments

import detslurm as det
from detslurm.transformers import DetCallback, _callback
from detslurm.transformers._loading import Loading

FOLDER = Path(sys.argv[1])


class Net(nn.Module):  # type: ignore[misc]
    """One layer and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss of a batch."""
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}


class Own(Optimizer):  # type: ignore[misc]
    """One that loads in its own way."""

    def __init__(self) -> None:
        """Nothing of it is used."""

    def load_state_dict(self, state_dict: Any) -> None:
        """Not torch's."""


class Seen(TrainerCallback):  # type: ignore[misc]
    """Notes what the optimizer steps with: after two steps, of four."""

    def __init__(self) -> None:
        self.options: list[tuple[float, float, float]] = []
        self.moments = 0

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any
    ) -> None:
        """The two steps of this training."""
        self.moments = len(optimizer.state)
        self.options += [
            (round(g["lr"], 6), g["weight_decay"], g["betas"][0]) for g in optimizer.param_groups
        ]


def train(name: str, rate: float, *, other: str | None, own: bool, **more: Any) -> Seen:
    """Four steps, the learning rate falling to 0; `own`: with an optimizer of the script."""
    resumed = None if other is None else FOLDER / other / "checkpoint-2"
    found = SimpleNamespace(
        resumed=resumed, other_hparams=1 if other else None, is_own=other is None,
        metadata=lambda steps: {}, close=lambda: None,
    )  # fmt: skip
    setattr(_callback, "FrameworkCheckpoints", lambda *args: found)  # noqa: B010
    args = TrainingArguments(
        output_dir=str(FOLDER / name), max_steps=4, save_steps=2, learning_rate=rate,
        per_device_train_batch_size=2, report_to="none", use_cpu=True, disable_tqdm=True, **more,
    )  # fmt: skip
    model = Net()
    records = [{"x": torch.ones(2), "labels": torch.tensor(1.0)} for _ in range(8)]
    options: dict[str, Any] = {}
    if own:
        groups = [
            {"params": [one], "lr": rate * (2 - n)} for n, one in enumerate(model.parameters())
        ]
        options["optimizers"] = (AdamW(groups), None)
    seen = Seen()
    with det.core.init() as core:
        core.checkpoint.upload = lambda *args, **more: ""  # type: ignore[method-assign]
        trainer = Trainer(model, args, train_dataset=records, **options)
        trainer.add_callback(seen)
        trainer.add_callback(DetCallback(core, args))
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    return seen


def warned_of_half_written() -> bool:
    """Whether the callback names the sound checkpoint, before any training."""
    folder = FOLDER / "trainer"
    (folder / "checkpoint-9").mkdir()  # as a killed run leaves it
    said = io.StringIO()
    logging.getLogger("detslurm.transformers").addHandler(logging.StreamHandler(said))
    args = TrainingArguments(output_dir=str(folder), report_to="none", use_cpu=True)
    with det.core.init() as core:
        DetCallback(core, args)
    text = said.getvalue()
    return "checkpoint-9 is half-written" in text and f"{args.resume_from_checkpoint!r}" in text


def main() -> None:
    """Print what the second trainings began with."""
    load = Optimizer.load_state_dict
    found = {}
    for kind, own in {"trainer": False, "own": True}.items():
        train(kind, 0.1, other=None, own=own, weight_decay=0.5)
        seen = train(f"{kind} 2", 0.01, other=kind, own=own, weight_decay=0.25, adam_beta1=0.8)
        found[kind] = [seen.moments, *seen.options]
    one, other = Loading(), Loading()
    one.close()
    other.close()
    mine = AdamW([torch.zeros(1, requires_grad=True)])
    mine.load_state_dict(mine.state_dict())
    Optimizer.load_state_dict = load
    third = Loading()
    mine.load_state_dict(mine.state_dict())  # of a script's own, without a schedule
    found["end"] = [third.end(mine, SimpleNamespace(base_lrs=[1.0])), third.end(Own(), None)]
    found["restored"] = [Optimizer.load_state_dict is load]
    found["half-written"] = [warned_of_half_written()]
    print(json.dumps(found))


main()
