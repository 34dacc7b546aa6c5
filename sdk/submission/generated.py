"""Generated directories of a project, which code does not need: recognised by their content."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from detslurm.storage import METADATA

REPORT_MARK: Final = '<meta name="generator" content="detslurm report">'
"""Stands at the beginning of each page that `detslurm report` writes."""

_MARK_WITHIN = 512  # bytes of a page
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# As `detslurm checkpoint download` calls its directories, by default and while it copies.
_COPY = re.compile(_UUID)
_GROWING = re.compile(rf"\.{_UUID}\.[0-9a-f]{{8}}\.partial")


def generated_directory(name: str, entries: Collection[str]) -> str | None:
    """The kind of a directory that belongs to no code, by its name and its entries' names."""
    if "pyvenv.cfg" in entries:
        return "a virtual environment: name it by its absolute path"
    if "conda-meta" in entries:
        return "a conda environment: name it by its absolute path"
    if name == "node_modules":
        return "packages of Node.js"
    if _GROWING.fullmatch(name) or (_COPY.fullmatch(name) and METADATA in entries):
        return "a downloaded checkpoint: name it with --include if the code needs it"
    return None


def is_report(path: Path) -> bool:
    """Whether `detslurm report` wrote the file; False of a file that can't be read."""
    if path.suffix != ".html":
        return False
    try:
        with path.open("rb") as file:
            return REPORT_MARK.encode() in file.read(_MARK_WITHIN)
    except OSError:
        return False
