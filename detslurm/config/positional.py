"""The place of a trial's arguments in an entrypoint that is text for a shell. Pure.

The shell gets the arguments as positional parameters, so that their values are never parsed.
"""

from __future__ import annotations

import re

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
