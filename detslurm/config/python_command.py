"""Entrypoints that are one Python command and nothing else. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from detslurm.config.positional import PLACE

_PYTHON = re.compile(r"(?:/[\w./+-]+/)?python(?:3(?:\.\d+)?)?")
# Words that no shell changes.
_PLAIN = re.compile(rf"[\w./=,:+@%-]+(?:[ \t]+(?:[\w./=,:+@%-]+|{re.escape(PLACE)}))*")
_LAUNCHER = re.compile(
    r"(?:detslurm|determined)\.launch\b|torch\.distributed\b|accelerate|deepspeed"
)


def python_command(
    entrypoint: str | Sequence[str], arguments: Sequence[str] = ()
) -> list[str] | None:
    """Return the words of `python3 SCRIPT ...` or `python3 -m MODULE ...`, with the arguments in
    their place; None for what a shell has to read, and for launchers of other processes."""
    if isinstance(entrypoint, str):
        text = entrypoint.strip()
        if not _PLAIN.fullmatch(text):
            return None
        words = text.split()
    else:
        words = list(entrypoint)
    at = words.index(PLACE) if PLACE in words else len(words)
    words[at : at + 1] = arguments
    if not words or not _PYTHON.fullmatch(words[0]):
        return None
    python, *rest = words
    rest = rest[1:] if rest[:1] == ["-u"] else rest  # the output of a run is never buffered
    is_module = rest[:1] == ["-m"] and len(rest) > 1
    if not rest or (rest[0].startswith("-") and not is_module):
        return None
    if is_module and _LAUNCHER.match(rest[1]):
        return None
    return [python, *rest]
