"""The digits example, trained with one seed: the bits that any way of training it must give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.desk import Desk

SEED = "reproducibility.experiment_seed=7"
BATCHES_AN_EPOCH = 47
EPOCHS = 10
ASKS = """\
            if core_context.preempt.should_preempt():
"""
HOLDS = """\
            while step == HELD.get(info.trial._trial_run_id):
                if core_context.preempt.should_preempt():
                    break
                time.sleep(0.01)
"""


def hold(config: Path, *steps: int) -> None:
    """Let the example wait for somebody who wants it to leave: the first run at the first of
    `steps`, the second at the next and so on."""
    script = config.parent / "train.py"
    text = script.read_text()
    assert text.count(ASKS) == 1
    held = dict(enumerate(steps, 1))
    script.write_text(text.replace(ASKS, HOLDS.replace("HELD", str(held)) + ASKS))


@dataclass(frozen=True)
class Training:
    """Every metric of every step, and the final model."""

    history: list[tuple[str, int, dict[str, Any]]]
    model: dict[str, bytes]


def training(desk: Desk, number: int) -> Training:
    """What a training that has ended gave."""
    history = [(row.group, row.steps, row.metrics) for row in desk.metrics(number)]
    steps = [steps for group, steps, _ in history if group == "training"]
    assert steps == list(range(10, EPOCHS * BATCHES_AN_EPOCH + 1, 10))
    return Training(history, _final_model(desk, number))


def _final_model(desk: Desk, number: int) -> dict[str, bytes]:
    import torch

    latest = desk.trial(number).latest_checkpoint
    assert latest is not None
    assert latest.steps == EPOCHS * BATCHES_AN_EPOCH
    path = desk.store.path / "checkpoints" / latest.uuid / "state.pt"
    state = torch.load(path, weights_only=True)
    return {name: tensor.numpy().tobytes() for name, tensor in state["model"].items()}
