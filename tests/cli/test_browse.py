"""`detslurm checkpoint browse`: driven by textual's pilot, and in a real terminal."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")

from textual.pilot import Pilot
from textual.widgets import Input, Static, Tree

from detslurm.cli.checkpoint import browsing
from detslurm.cli.checkpoint.browser import CheckpointBrowser
from tests.cli.conftest import Detslurm
from tests.cli.terminals import on_terminal
from tests.cli.tmux import TmuxTerminal, needs_tmux
from tests.sdk.scenes import Scene

FIRST = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
SECOND = "6fa459ea-ee8a-3ca4-894e-db77e160355e"


@pytest.fixture
def saved(scene: Scene) -> Scene:
    """An experiment whose two trials have saved a checkpoint each."""
    experiment = scene.experiment(2, name="resnet \x1b[2J sweep")
    scene.run(experiment, 0, losses=[0.5, 0.25], checkpoint=FIRST, end="completed")
    scene.run(experiment, 1, losses=[0.75], checkpoint=SECOND, end="completed")
    return scene


def drive(scene: Scene, act: Callable[[Pilot[None]], Awaitable[None]]) -> CheckpointBrowser:
    """Open the browser at 80x24, and act."""
    browser = CheckpointBrowser(scene.client)

    async def run() -> None:
        async with browser.run_test(size=(80, 24)) as pilot:
            await settled(pilot)
            await act(pilot)

    asyncio.run(run())
    return browser


async def settled(pilot: Pilot[None]) -> None:
    """Until what was asked for was read.

    A key passes several widgets' queues until a worker begins, and so does what it has read. Each
    pause waits for one more queue; a pause for an idle process ends early on a busy machine.
    """
    for _ in range(2):
        for _ in range(10):
            await pilot.pause(0)
        await pilot.app.workers.wait_for_complete()
    await pilot.pause()


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, waiting after each for what it starts."""
    for key in keys:
        await pilot.press(key)
        await settled(pilot)


def lines(pilot: Pilot[None]) -> list[str]:
    """The lines of the tree that are open."""
    tree: Tree[Any] = pilot.app.query_one(Tree)
    found: list[str] = []

    def visit(node: Any) -> None:
        found.append(str(node.label))
        if node.is_expanded:
            for child in node.children:
                visit(child)

    visit(tree.root)
    return found


def beside(pilot: Pilot[None]) -> str:
    """What is shown beside the tree."""
    return str(pilot.app.query_one("#details", Static).content)


def test_each_level_is_read_when_it_is_opened(
    saved: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experiments, trials, checkpoints, files, with metrics beside them."""
    read: list[int] = []
    paged = browsing.paged

    def noting(items: Any, node: Any) -> Any:
        read.append(len(items))
        return paged(items, node)

    monkeypatch.setattr(browsing, "paged", noting)

    async def act(pilot: Pilot[None]) -> None:
        experiment = "1  resnet ?[2J sweep  COMPLETED  loss 0.25"
        assert lines(pilot) == ["experiments", experiment]
        assert read == [1]
        await press(pilot, "down", "enter", "down", "enter")
        assert lines(pilot)[2:] == [
            "trial  1  COMPLETED  loss 0.25",
            "1b4e28ba  step 2  0.25  5 Bytes",
            "trial  2  COMPLETED  loss 0.75",
        ]
        assert "Best loss 0.25 @ 2" in beside(pilot)
        assert "hparams.lr 0.1" in beside(pilot)
        await press(pilot, "down", "enter", "down")
        assert "weights  5 Bytes" in lines(pilot)
        assert beside(pilot).startswith("File weights")
        assert len(read) == 4
        await press(pilot, "up", "enter", "enter")
        assert f"UUID {FIRST}" in beside(pilot)
        assert len(read) == 4

    drive(saved, act)


def test_a_checkpoint_is_copied_restored_and_deleted_by_keys(saved: Scene, tmp_path: Path) -> None:
    """Deleting asks first; what is not a checkpoint is refused."""
    copy = tmp_path / "copy"

    async def act(pilot: Pilot[None]) -> None:
        await press(pilot, "x")
        assert (saved.root / "checkpoints" / FIRST).exists()
        await press(pilot, "down", "enter", "down", "enter", "down")
        await press(pilot, "r")
        await press(pilot, "escape", "d")
        pilot.app.screen.query_one(Input).value = str(copy)
        await press(pilot, "enter")
        assert (copy / "weights").read_text() == "12345"
        await press(pilot, "x", "n")
        assert (saved.root / "checkpoints" / FIRST).exists()
        await press(pilot, "x", "y")
        assert not (saved.root / "checkpoints" / FIRST).exists()
        assert not any(line.startswith("1b4e28ba") for line in lines(pilot))

    (shown,) = drive(saved, act).shown
    assert f"detslurm checkpoint download {FIRST}" in shown


def test_what_can_not_be_done_is_said_and_nothing_breaks(saved: Scene) -> None:
    """A checkpoint that a model needs stays; an experiment that was deleted meanwhile."""
    experiment = saved.client.stored(1)
    from detslurm.store import checkpoint_facts

    directory = experiment._snapshot.directory
    kept = checkpoint_facts.keep(directory, [FIRST], by="model resnet version 3")

    async def act(pilot: Pilot[None]) -> None:
        await press(pilot, "down", "enter", "down", "enter", "down", "x", "y")
        (said,) = [str(one.message) for one in pilot.app._notifications]
        assert "model resnet version 3" in said
        assert (saved.root / "checkpoints" / FIRST).exists()
        await press(pilot, "up", "up", "enter")
        checkpoint_facts.release(directory, kept)
        experiment.delete()
        await press(pilot, "enter", "u", "up", "u")
        assert any("was deleted" in str(one.message) for one in pilot.app._notifications)

    drive(saved, act)


def test_thousands_of_experiments_are_paged() -> None:
    """The first ones, and one line for the others, which opens to the next page."""
    files = [(f"file-{n}", n) for n in range(1000)]
    first = browsing.paged(files, browsing.file_node)
    assert len(first) == browsing.PAGE + 1
    assert first[-1].label == "800 more" and first[-1].children is not None
    assert first[-1].children()[0].label.startswith("file-200")
    assert len(browsing.paged(files[:5], browsing.file_node)) == 5


def test_without_a_terminal_or_textual_it_says_what_to_do(
    saved: Scene, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And prints nothing else."""
    result = detslurm("checkpoint", "browse")
    assert (result.status, result.out) == (1, "")
    assert "needs a terminal; `detslurm checkpoint list`" in result.err
    env = {"PYTHONIOENCODING": "latin-1", "DETSLURM_ROOT": str(saved.root)}
    said = on_terminal("checkpoint", "browse", env=env, errors=True, columns=300)
    assert "set PYTHONUTF8=1; `detslurm checkpoint list`" in said
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'detslurm[tui]'" in detslurm("checkpoint", "browse").err


@needs_tmux
def test_it_works_in_a_real_terminal_of_80_by_24(saved: Scene, tmp_path: Path) -> None:
    """Every key that its last line promises; restore commands stay after it ends."""

    def run(argv: list[str]) -> str:
        env = {**os.environ, "TERM": "xterm-256color", "DETSLURM_ROOT": str(saved.root)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        return done.stdout

    command = shlex.join([sys.executable, "-m", "detslurm", "checkpoint", "browse"])
    terminal = TmuxTerminal(run, str(tmp_path / "tmux"), f"cd {tmp_path}; {command}", (80, 24))
    try:
        terminal.shows("resnet ?[2J sweep")
        terminal.shows("r Restore  d Download  x Delete  u Read again  q Quit")
        for key, text in (
            ("Down", "Best loss"), ("Enter", "trial  2"), ("Down", "hparams.lr"),
            ("Enter", "1b4e28ba"), ("Down", "UUID"), ("r", f"checkpoint download {FIRST}"),
        ):  # fmt: skip
            terminal.press(key)
            terminal.shows(text)
        terminal.press("Enter")
        terminal.press("x")
        terminal.shows("y deletes it, n keeps it")
        terminal.press("y")
        terminal.shows("Deleted 1b4e28ba")
        assert not (saved.root / "checkpoints" / FIRST).exists()
        terminal.press("q")
        assert f"detslurm checkpoint download {FIRST}" in terminal.shows("left")
    finally:
        terminal.end()
