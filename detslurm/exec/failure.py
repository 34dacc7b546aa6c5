"""Errors of the code itself, as a run's log shows them: the next run would meet them again.

Only errors that can't pass on their own are recognised: a wrong module, name, class or argument.
Errors that depend on the world (files, network, memory, devices, peers), and errors of unknown
kinds, may be gone a moment later.
"""

from __future__ import annotations

import builtins
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_OF_THE_CODE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
    ValueError,
)
_NO_SUCH_WEIGHTS = "Error(s) in loading state_dict for "
_LAUNCHERS = ("ChildFailedError", "CalledProcessError")

# The exit status of a Python that ends by an exception, or finds no script.
EXITS = (1, 2)
_TAIL = 256 * 1024
_WIDTH = 300
# After its traceback a process prints little; a launcher then prints how its workers ended.
_AFTERWORD = 60

_LINE = re.compile(r"\[[^]\s]+\] (?:\[rank=(\d+)\] )?\|\| (.*)")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
# The error that such a line announces ended a thread or nothing at all.
_HARMLESS = ("Exception ignored", "Exception in thread", "--- Logging error ---")
_FRAME = re.compile(r'  File "([^"]+)", line (\d+)(?:, in (.+))?')
_ERROR = re.compile(r"(?:[\w.]+\.)?(\w+)(?:: (.*))?")
# Python finds no script, or argparse refuses its arguments: both end a process without a traceback.
_REFUSAL = re.compile(
    r"\S*python[\d.]*: (No module named \S+|can't open file .*No such file.*)|\S+\.py: error: .+"
)
_OF_A_SHELL = re.compile(
    r"\S+: .*(not found|Permission denied|No such file or directory|cannot execute\b.*)"
)
_FOLDERS = re.compile(r"(?:/[^\s/'\"():]+)+/")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True)
class Failure:
    """An error of the code: its last line, and a digest of where and what, equal in each run.

    A failure that an agent recognised has its `FailureKind` as the digest.
    """

    error: str = field(compare=False)
    digest: str

    def to_dict(self) -> dict[str, str]:
        """Plain data for the run's end record."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any] | None) -> Failure | None:
        """The object that `to_dict` wrote; None for anything else."""
        given = plain or {}
        error, digest = given.get("error"), given.get("digest")
        return cls(error, digest) if isinstance(error, str) and isinstance(digest, str) else None


@dataclass
class _Error:
    """The last lines of an exception and of those that led to it, and the frames of all."""

    chain: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)


def failure_in(log: Path) -> Failure | None:
    """The error of the code that ended a run, by the end of its log; None where it shows none."""
    return failure_of(_end_of(log))


def error_in(log: Path) -> str | None:
    """The last line of the exception that ended a run, of whatever kind, by the end of its log.

    Without an exception it is the last line of the log, where a shell reports why it can't go on.
    """
    lines = _end_of(log)
    if (error := _first_error(lines)) is not None:
        return error.chain[-1][:_WIDTH]
    last = next((m[2] for m in map(_LINE.fullmatch, reversed(lines)) if m and m[1]), "")
    return last[:_WIDTH] if _OF_A_SHELL.fullmatch(last) else None


def _end_of(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, 2) - _TAIL, 0))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def failure_of(lines: Sequence[str]) -> Failure | None:
    """The first of the errors that ended its ranks; None if that is none of the code's own."""
    error = _first_error(lines)
    own = error is not None and all(map(_is_of_the_code, error.chain))
    return _failure(error) if error is not None and own else None


def _first_error(lines: Sequence[str]) -> _Error | None:
    ranks: dict[str | None, list[tuple[int, str]]] = {}
    for place, line in enumerate(lines):
        if (match := _LINE.fullmatch(line)) is not None:
            ranks.setdefault(match[1], []).append((place, match[2]))
    ends = [end for lines in ranks.values() if (end := _last_error(lines)) is not None]
    return min(ends, key=lambda end: end[0])[1] if ends else None


def _last_error(lines: Sequence[tuple[int, str]]) -> tuple[int, _Error] | None:
    """Where a rank's last error stands, and what it is."""
    last = None
    for number, error in _errors([text for _, text in lines]):
        if _kind(error.chain[-1]) not in _LAUNCHERS:
            last = number, error
    if last is None or len(lines) - last[0] > _AFTERWORD:
        return None
    return lines[last[0]][0], last[1]


def _errors(texts: Sequence[str]) -> Iterator[tuple[int, _Error]]:
    """Every error of a text that may have ended its process, with the number of its last line."""
    error, open_, harmless = _Error(), False, False
    for number, text in enumerate(texts):
        frame = _FRAME.fullmatch(text)
        if text == _TRACEBACK or frame is not None:
            # A syntax error of the script itself has a frame and no more.
            open_ = True
        if frame is not None:
            error.frames.append(f"{Path(frame[1]).name}:{frame[2]}:{frame[3]}")
        elif open_ and text != _TRACEBACK and text and not text.startswith(" "):
            error.chain.append(text)
            if not harmless:
                yield number, error
            open_ = False
        elif _REFUSAL.fullmatch(text):
            yield number, _Error([text])
        elif not open_ and text and text not in _CHAINED:
            error, harmless = _Error(), text.startswith(_HARMLESS)


def _kind(error: str) -> str:
    match = _ERROR.fullmatch(error)
    return match[1] if match else ""


def _is_of_the_code(error: str) -> bool:
    if _REFUSAL.fullmatch(error):
        return True
    if _kind(error) == "RuntimeError":
        return _NO_SUCH_WEIGHTS in error
    kind = getattr(builtins, _kind(error), None)
    return isinstance(kind, type) and issubclass(kind, _OF_THE_CODE)


def _failure(error: _Error) -> Failure:
    # Every run has a directory and addresses of its own.
    lines = [_ADDRESS.sub("0x", _FOLDERS.sub("", text)) for text in error.chain]
    digest = hashlib.sha256("\n".join([*lines, *error.frames]).encode()).hexdigest()
    return Failure(error.chain[-1][:_WIDTH], digest[:16])
