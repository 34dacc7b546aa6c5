"""Progress bars on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from detslurm.cli.output import progress
from detslurm.cli.output.progress import steps, transfer
from tests.cli.terminals import without_colors


class Terminal(io.StringIO):
    """Takes what is written to it, as a terminal does."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("calls", "seen"), [([(0, 11), (11, 11)], "11/11 bytes"), ([(11, 11)], "11/11 bytes"), ([], "")]
)
def test_a_bar_shows_what_is_known(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[int, int]], seen: str
) -> None:
    """However short a download is, and where all was there before; there is no unknown whole."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    with transfer("1b4e28ba") as show:
        for done, whole in calls:
            show(done, whole)
    text = without_colors(terminal.getvalue())
    assert "/?" not in text and seen in text


def test_an_empty_bar_does_not_look_full_without_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the whole is known, and before anything is done."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    for calls in ((), ((0, 4),)):
        with steps("Reading experiments") as show:
            for done, whole in calls:
                show(done, whole)
    text = without_colors(terminal.getvalue())
    assert "0%" in text and "━" not in text


def test_a_log_gets_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one after a minute: short work prints nothing; quiet work never does."""
    clock = iter([0.0, 59.0, 61.0, 100.0, 130.0])
    monkeypatch.setattr(progress, "monotonic", lambda: next(clock))
    with transfer("digits.tar") as show:
        for mebibytes in (1, 2, 3, 4):
            show(mebibytes << 20, 4 << 20)
    assert capsys.readouterr().err.splitlines() == [
        "digits.tar: 2.0 MiB of 4.0 MiB (50 %)",
        "digits.tar: 4.0 MiB of 4.0 MiB (100 %)",
    ]
    clock = iter([0.0, 61.0])
    with steps("Looking at experiments") as show:
        show(3, 1000)
    with steps("Looking at experiments", quiet=True) as show:
        show(4, 1000)
    assert capsys.readouterr().err == "Looking at experiments: 3 of 1000 (0 %)\n"
