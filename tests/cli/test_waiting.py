"""Progress of what others do: a bar on a terminal, and a line a minute in a log."""

from __future__ import annotations

import sys

import pytest

from detslurm.cli.output.waiting import BottomLine, waiting
from detslurm.cli.submission.follow import follow_first_trial
from tests.cli.terminals import without_colors
from tests.cli.test_progress import Terminal
from tests.sdk.scenes import Scene, say


class Clock:
    """Seconds that only a test lets pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("detslurm.cli.output.waiting.monotonic", lambda: self.now)


def test_waiting_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A change of the state at once, everything else a minute apart."""
    clock = Clock(monkeypatch)
    with waiting() as show:
        for second in range(130):
            clock.now = 1000.0 + second
            show("ACTIVE" if second < 125 else "PAUSED", f"at {second}", second / 130)
    assert capsys.readouterr().err.split() == "at 0 at 60 at 120 at 125".split()  # noqa: SIM905


def test_waiting_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar, with what was said last; brackets are no markup."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    with waiting() as show:
        show("ACTIVE", "experiment 7 [red] is ACTIVE", 0.25)
    text = without_colors(terminal.getvalue())
    assert "experiment 7 [red] is ACTIVE" in text and "25%" in text


def test_the_bottom_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is taken away before anything is printed above it; in a pipe it comes once a minute."""
    clock = Clock(monkeypatch)
    line = BottomLine(lambda: f"at {clock.now:.0f}")
    for _ in range(130):
        clock.now += 1
        line.show()
        line.clear()
    assert capsys.readouterr().err.splitlines() == ["at 1060", "at 1120"]
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    monkeypatch.setenv("COLUMNS", "40")
    line = BottomLine(lambda: "x" * 100)
    line.show()
    line.clear()
    line.clear()
    assert terminal.getvalue() == "x" * 39 + "\r\x1b[K"


def test_a_followed_trial_has_a_line_below_its_log(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far it is; it is taken away before each line, and at the end."""
    trial = scene.run(scene.experiment(), losses=[1.0] * 5, log=["0: step 5"])
    scene.queue.put("7", "RUNNING")
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)

    def ends(seconds: float) -> None:
        say(trial, 1, ["0: the last line"])
        trial.write_end(1, {"outcome": "completed", "exit_code": 0, "time": 2000.0})

    monkeypatch.setattr("detslurm.cli.submission.follow.time.sleep", ends)
    assert follow_first_trial(scene.client, 1)
    bottom = "trial 1 is RUNNING: 0%"
    text = terminal.getvalue()
    assert f"|| step 5\n{bottom}\r\x1b[K[2026" in text
    after = text.partition(bottom)[2]
    assert "the last line\n" in after and bottom not in after
    assert text.splitlines()[-1].startswith("Trial 1 of experiment 1: COMPLETED")


def test_ctrl_c_says_that_the_experiment_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends following alone; the line below the log is taken away."""
    scene.run(scene.experiment(), log=["0: step 5"])
    scene.queue.put("7", "RUNNING")

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("detslurm.cli.submission.follow.time.sleep", interrupted)
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    with pytest.raises(KeyboardInterrupt):
        follow_first_trial(scene.client, 1)
    goes_on = "Experiment 1 goes on: `detslurm experiment logs -f 1` follows it again.\n"
    assert terminal.getvalue().endswith(f"trial 1 is RUNNING: 0%\r\x1b[K{goes_on}")


def test_following_a_trial_that_fails_fails(scene: Scene) -> None:
    """So that `submit --follow && evaluate` evaluates nothing then."""
    scene.run(scene.experiment(), log=["0: oh"], end="error")
    assert not follow_first_trial(scene.client, 1)
