"""Bars and sparklines in lists and descriptions: on a terminal alone."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Detslurm
from tests.cli.terminals import on_terminal, without_colors
from tests.sdk.scenes import Scene


@pytest.fixture
def half(scene: Scene) -> Scene:
    """An experiment that is half done; one that is over."""
    experiment = scene.experiment(2, name="resnet")
    scene.run(experiment, 0, losses=[0.9, 0.5, 0.3, 0.1], end="completed")
    scene.run(scene.experiment(1, job=None), losses=[1.0], end="completed")
    return scene


def test_bars_where_a_list_has_room_for_them(half: Scene, detslurm: Detslurm) -> None:
    """No column goes for a bar; a pipe and other encodings get none."""
    wide = without_colors(on_terminal("e", "list", columns=200))
    assert " 50% ████····" in wide and "100%" in wide and "100% █" not in wide
    narrow = without_colors(on_terminal("e", "list", columns=60))
    assert "50%" in narrow and "█" not in narrow
    assert max(map(len, wide.splitlines())) <= 200
    dumb = on_terminal("e", "list", columns=200, env={"PYTHONIOENCODING": "ascii"})
    assert "50%" in dumb and dumb.isascii()
    assert "█" not in detslurm("e", "list").out


def test_a_description_shows_how_far_and_the_best_curve(half: Scene, detslurm: Detslurm) -> None:
    """Beside the figures that a pipe gets."""
    shown = without_colors(on_terminal("e", "describe", 1))
    assert "50% ██████████··········" in shown
    assert "loss 0.1 (trial 1)  █▅▃▁" in shown
    plain = detslurm("e", "describe", 1).out
    assert "50%\n" in plain and "loss 0.1 (trial 1)\n" in plain and "█" not in plain
