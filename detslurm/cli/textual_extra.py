"""Checks for commands that take the whole terminal."""

from __future__ import annotations

import codecs
import importlib.util
import os
import sys

from detslurm.sdk.errors import LifecycleError


def check_textual(command: str, otherwise: str) -> None:
    """Raise LifecycleError where textual is missing, or a terminal on which it can draw.

    Args:
        command: The command.
        otherwise: The way without a terminal, as the beginning of a sentence.
    """
    if importlib.util.find_spec("textual") is None:
        raise LifecycleError(
            f"{command} needs textual, which is not installed for this Python: "
            "pip install 'detslurm[tui]'"
        )
    # textual draws on stderr.
    there = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not there or os.environ.get("TERM", "dumb") == "dumb":
        raise LifecycleError(f"{command} needs a terminal; {otherwise}")
    if codecs.lookup(sys.stderr.encoding).name != "utf-8":
        raise LifecycleError(
            f"{command} draws with characters that {sys.stderr.encoding}, the locale's encoding,"
            f" has not; where the terminal shows UTF-8, set PYTHONUTF8=1; {otherwise}"
        )
