"""Importance by Optuna's PED-ANOVA in a report."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from detslurm._base import pythonpath
from detslurm.look.document import ExperimentPart, Snapshot, TrialPart
from detslurm.look.ped_anova import with_ped_anova
from tests.look.browser import Browser
from tests.look.documents import document
from tests.look.test_report_page import shown

RANGE = {"type": "double", "minval": 0, "maxval": 1}
SPACE: dict[str, Any] = {
    "x": RANGE,
    "model": {"act": {"type": "categorical", "vals": [1, True, "relu"]}, "width": 64},
}


def taken(trials: int = 60, **hparams: Any) -> Snapshot:
    """A search whose result depends on x alone; the last trial has no result."""
    chance = random.Random(1)
    parts = []
    for number in range(trials):
        x, act = chance.random(), chance.choice(SPACE["model"]["act"]["vals"])
        values = {"x": x, "model.act": act, "model.width": 64, **hparams}
        best = None if number == trials - 1 else 1 - abs(x - 0.3)
        parts.append(TrialPart(id=number, state="COMPLETED", hparams=values, best=best))
    config = {"hyperparameters": SPACE}
    part = ExperimentPart(id=1, smaller_is_better=False, config=config, trials=parts)
    return Snapshot(taken=1.0, store="/store", experiments=[part])


def test_the_hyperparameter_that_decides_has_the_largest_share() -> None:
    """Nested names are those of the page; constants have none; shares are parts of a whole."""
    (part,) = with_ped_anova(taken()).experiments
    assert part.problems == [] and {*part.ped_anova} == {"x", "model.act"}
    assert part.ped_anova["x"] > 0.8
    assert sum(part.ped_anova.values()) == pytest.approx(1)


def test_why_there_is_none_stands_among_the_problems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Too few trials, hyperparameters from elsewhere, no Optuna: the report is written anyway."""
    start = "Importance by PED-ANOVA is left out: "
    (few,) = with_ped_anova(taken(1)).experiments
    (strange,) = with_ped_anova(taken(x="a word")).experiments
    (tmp_path / "optuna.py").write_text("raise ImportError('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(pythonpath, "is_needed", lambda: True)
    (missing,) = with_ped_anova(taken()).experiments
    for part in (few, strange, missing):
        assert not part.ped_anova and len(part.problems) == 1
        assert part.problems[0].startswith(start)
    assert "pip install 'detslurm[optuna]'" in missing.problems[0]


def test_the_page_shows_it_beside_its_own_measure(chromium: Browser, tmp_path: Path) -> None:
    """A diamond for each hyperparameter that both measures know."""
    drawn = document(1, trials=12)
    (part,) = drawn.experiments
    shares = {"lr": 0.75, "elsewhere": 0.25}
    shown(chromium, replace(drawn, experiments=[replace(part, ped_anova=shares)]), tmp_path)
    chromium.js("document.querySelector('#importance').scrollIntoView()")
    chromium.wait_for("document.querySelector('#importance .plot .main-svg')")
    plot = "document.querySelector('#importance .plot')"
    trace = chromium.js(f"const {{ name, x }} = {plot}.data[2]; return {{ name, x }}")
    assert trace["name"].startswith("PED-ANOVA") and list(trace["x"]) == [0.75]
