"""PYTHONPATH is for the code of users: detslurm's own processes find their own packages first.

Module trees of sites put directories there that have other versions of what detslurm needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from detslurm._base import contract

_PACKAGES = ("click", "msgspec", "pathspec", "submitit", "typing_extensions", "yaml")
"""The packages that detslurm's own processes import."""


def own_packages_first() -> None:
    """Search the directories of PYTHONPATH last, unless detslurm itself is in one of them."""
    given = _directories()
    if given and not _is_below(given, sys.modules["detslurm"].__file__):
        own = [place for place in sys.path if Path(place).absolute() not in given]
        sys.path[:] = [*own, *(place for place in sys.path if place not in own)]


def is_needed() -> bool:
    """Whether this process has found detslurm, or a package that it needs, through PYTHONPATH."""
    given = _directories()
    modules = map(sys.modules.get, ("detslurm", *_PACKAGES))
    return any(_is_below(given, getattr(module, "__file__", None)) for module in modules)


def own_environment(env: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process of detslurm's own: PYTHONPATH is put aside, unless needed."""
    found = dict(env)
    if "PYTHONPATH" in found and not is_needed():
        found[contract.PYTHONPATH] = found.pop("PYTHONPATH")
    return found


def append_what_is_aside() -> None:
    """Search the directories put aside last: they may have modules that are not installed here."""
    sys.path += filter(None, os.environ.get(contract.PYTHONPATH, "").split(os.pathsep))


def complaint(error: Exception) -> str | None:
    """Return a sentence for the user if a package in PYTHONPATH is to blame for an error."""
    failed = (getattr(error, "name", None) or "").partition(".")[0]
    passed = _files_of(error)
    for directory in _directories():
        for name in _PACKAGES:
            place = directory / name
            # A package whose import has failed is not among the modules.
            files = [getattr(sys.modules.get(name), "__file__", None), *passed]
            inside = (f"{place}.py", f"{place}{os.sep}")
            is_there = name == failed and place.exists()
            if is_there or any(file.startswith(inside) for file in files if file):
                return (
                    f"PYTHONPATH has a {name} that detslurm can't use, in {directory} ({error})."
                    " Nothing was done. Take this directory out of PYTHONPATH for detslurm."
                )
    return None


def _files_of(error: Exception) -> list[str]:
    """The files of the code that an error has passed."""
    found, traceback = [], error.__traceback__
    while traceback is not None:
        found.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    return found


def _is_below(directories: list[Path], file: str | None) -> bool:
    # Not any directory above: that of an environment may be there for a module of its own.
    inside = () if file is None else Path(file).absolute().parents[:2]
    return any(directory in inside for directory in directories)


def _directories() -> list[Path]:
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [Path(place).absolute() for place in given if place]
