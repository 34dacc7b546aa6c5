"""Progress bars on a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from detslurm.cli.progress import transfer
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
    with transfer("1b4e28ba") as progress:
        for done, whole in calls:
            progress(done, whole)
    text = without_colors(terminal.getvalue())
    assert "/?" not in text and seen in text
