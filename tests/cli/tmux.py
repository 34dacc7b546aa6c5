"""A program in a real terminal: tmux shows what is on the screen, and types."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.cluster.waiting import wait_for

needs_tmux = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class TmuxTerminal:
    """A terminal; end it, or its server stays.

    Args:
        run: Runs a command line and returns what it printed.
        socket: A path of its own for the server.
        command: What runs in the terminal, as a line for a shell.
        size: Columns and lines.
    """

    def __init__(
        self, run: Callable[[list[str]], str], socket: str, command: str, size: tuple[int, int]
    ) -> None:
        self._run, self._socket = run, socket
        columns, lines = map(str, size)
        self._tmux("new-session", "-d", "-x", columns, "-y", lines, f"{command}; echo left; cat")

    def _tmux(self, *args: str) -> str:
        return self._run(["tmux", "-u", "-S", self._socket, "-f", "/dev/null", *args])

    @property
    def screen(self) -> str:
        """What it shows."""
        return self._tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        """Type keys, by tmux's names."""
        self._tmux("send-keys", *keys)

    def shows(self, text: str, timeout: float = 60) -> str:
        """Wait until a text is on the screen; returns the screen."""

        def look() -> str | None:
            screen = self.screen
            return screen if text in screen else None

        try:
            return wait_for(look, timeout, f"{text!r} on the screen")
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.screen}") from None

    def resize(self, columns: int, lines: int) -> None:
        """Change its size, as somebody who pulls at the window."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def end(self) -> None:
        """End it with all that runs in it."""
        self._tmux("kill-server")
