"""The kinds of entrypoints: a Trial class, one Python command, or text for a shell. Pure.

A shell gets a trial's arguments as positional parameters, so that their values are never parsed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detslurm.config.yaml_node import YamlNode

PLACE = '"$@"'

_HELD = re.compile(r'"\$(?:@|\{@\})"')
_CONTINUED = re.compile(r"(?<!\\)\\\s*\Z")  # at the end it would quote the space before the place
_UNQUOTED = re.compile(r"\$(?:[@*]|\{[@*]\})")
# Texts in which no character separates commands.
_INERT = re.compile(
    r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|\\.|\$\([^()]*\)|\$\{[^{}]*\}|`[^`]*`", re.DOTALL
)
_BORDER = re.compile(r"\d*[<>]+[&|]?\s*[^\s;|&<>()]*|[;|&\n()]+|(?<!\S)#[^\n]*")
_TRAINS = re.compile(r"python|torchrun|accelerate|deepspeed|mpirun|srun|\.py\b")


def with_place(text: str) -> str:
    """Return the text with a place for the arguments: its own, or else at its end."""
    return text if _HELD.search(text) else f"{_CONTINUED.sub('', text).rstrip()} {PLACE}"


def unquoted_place(text: str) -> str | None:
    """Return a place that would split values at their spaces, such as `$*`; None without any."""
    found = _UNQUOTED.search(_HELD.sub("", text))
    return found[0] if found else None


def suggestion(text: str) -> str | None:
    """Return where the place could be, in a text whose end may be another command's end.

    None where the text has a place, or where its end is the only possible place.
    """
    whole = text.strip()
    if _HELD.search(whole):
        return None
    shown = _INERT.sub(lambda found: "x" * len(found[0]), whole)
    borders = [match.span() for match in _BORDER.finditer(shown)]
    if not borders:
        return None
    starts, ends = [0, *(end for _, end in borders)], [*(start for start, _ in borders), len(whole)]
    commands = [(a, b) for a, b in zip(starts, ends, strict=True) if shown[a:b].strip()]
    training = [(a, b) for a, b in commands if _TRAINS.search(whole[a:b])]
    start, end = (training or commands or [(0, len(whole))])[0]
    end = start + len(whole[start:end].rstrip())
    return f"{whole[:end]} {PLACE}{whole[end:]}"


# -- Trial classes ---------------------------------------------------------------------------------

_TRIAL_CLASS = re.compile(r"[a-zA-Z0-9_.]+:[a-zA-Z0-9_]+")
_TRIAL_OPTION = re.compile(rf"(?<!\S)--trial[ =]{_TRIAL_CLASS.pattern}(?!\S)")


def names_trial_class(root: YamlNode) -> bool:
    """Whether the entrypoint is a Trial class: then the configuration defines how to train it."""
    given = root.get("entrypoint")
    text = given.plain() if given else None
    words = text.split() if isinstance(text, str) else text
    if not isinstance(words, list):
        return False
    text = " ".join(map(str, words))
    return bool(_TRIAL_CLASS.fullmatch(text) or _TRIAL_OPTION.search(text))


# -- Python commands -------------------------------------------------------------------------------

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
