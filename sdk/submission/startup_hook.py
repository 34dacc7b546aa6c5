"""Check a `startup-hook.sh` before it runs on a node."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

NAME = "startup-hook.sh"

_CHANGES = re.compile(
    r"(?:^|[\s;&|(])(?:sudo\s+)?(?:python[\d.]*\s+-m\s+pip|pip[\d.]*|uv\s+pip|conda|mamba|apt-get|apt)\s+"
    r"(?:-\S+\s+)*(?:un|re)?install\b|(?:^|[\s;&|(])sed\s.*site-packages"
)
_OWN = re.compile(
    r"-m\s+venv\b|\bvirtualenv\b|\b(?:conda|mamba)\s+create\b|\s(?:--target|--prefix)\b"
)
_EDITABLE = re.compile(r"\s(?:-e|--editable)[\s=]+[\"']?(?!/|~|\$|\w+[+:])")


def problems(files: Mapping[str, Path]) -> list[str]:
    """Why the hook among the code's files fails in every run."""
    if b"\r\n" not in _text(files):
        return []
    return [
        f"{NAME} has line ends of Windows (CRLF), at which bash fails."
        f" `sed -i 's/\\r$//' {NAME}` mends it"
    ]


def notes(files: Mapping[str, Path], *, in_container: bool) -> list[str]:
    """List the lines of the hook that change the environment that all jobs share."""
    lines = [line.strip() for line in _text(files).decode("utf-8", "replace").splitlines()]
    if in_container or any(_OWN.search(line) for line in lines):
        return []  # an environment of its own
    found = [line for line in lines if not line.startswith("#") and _CHANGES.search(line)]
    return [_note(line) for line in found]


def _note(line: str) -> str:
    if _EDITABLE.search(line):
        return (
            f"{NAME}: `{line}` makes your environment point into the run's working directory, which"
            " is deleted with the run. Install the package once, from a directory of your own"
        )
    return (
        f"{NAME}: `{line}` changes the environment that all your jobs share, in every run, while"
        " others use it. Do it once before you submit"
    )


def _text(files: Mapping[str, Path]) -> bytes:
    try:
        return files[NAME].read_bytes() if NAME in files else b""
    except OSError:
        return b""
