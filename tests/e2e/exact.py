"""A training without torch that is the same to the last bit, whatever interrupts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.desk import Desk
from tests.e2e.exact_train import EPOCH, LAST, Model

HELD_AT = 60
"""In the middle of an epoch, and just reported."""

SCRIPT = Path(__file__).with_name("exact_train.py")


def project(desk: Desk, *held: int, name: str = "exact") -> Path:
    """Its directory; each run but the last is held at a step of `held`."""
    return desk.project(SCRIPT.read_text(), f"data: {{held: {list(held)}}}", name)


def assert_undisturbed(desk: Desk, number: int) -> None:
    """Every metric of every step, and the final weight, are those of a training in one go."""
    trial = desk.trial(number)
    assert trial.seed is not None
    history, model = _in_one_go(trial.seed)
    for group, expected in history.items():
        assert [(row.steps, row.metrics) for row in desk.metrics(number, group)] == expected
    latest = trial.latest_checkpoint
    assert latest is not None and latest.steps == LAST
    saved = Model(0)
    saved.load(desk.store.path / "checkpoints" / latest.uuid / "model.json")
    assert (saved.weight, saved.numbers.getstate()) == (model.weight, model.numbers.getstate())


def _in_one_go(seed: int) -> tuple[dict[str, list[tuple[int, dict[str, Any]]]], Model]:
    model = Model(seed)
    history: dict[str, list[tuple[int, dict[str, Any]]]] = {"training": [], "validation": []}
    while model.step < LAST:
        metrics = model.train_batch()
        if model.step % 10 == 0:
            history["training"].append((model.step, metrics))
        if model.step % EPOCH == 0:
            history["validation"].append((model.step, {"weight": model.weight}))
    return history, model
