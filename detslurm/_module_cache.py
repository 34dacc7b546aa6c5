"""Writes the module cache: what runners, agents and users' programs import of us, in one file.

`_start` has the other half. Modules of the standard library are in it, too: three quarters of the
names that these imports look up are theirs.
"""

from __future__ import annotations

import importlib
import importlib.util
import marshal
import os
import pkgutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

from detslurm import _start

_NOT_OF_RUNNERS = frozenset({"detslurm.exec.sampling"})  # a process of its own, for Optuna
_LEFT_OUT = (
    *("__editable__", "__main__", "_distutils_hack", "sitecustomize", "usercustomize"),
    *_start.WITHOUT,
)
_NOT_IMPORTED = ("detslurm.launch", "detslurm.pytorch")  # the latter imports torch
_STANDARD = str(Path(os.__file__).parent)
_PATIENCE = 60.0

_Found = tuple[str, list[str] | None, bytes | None]  # origin, a package's directories, its code


def refreshed(root: str) -> tuple[str, bytes] | None:
    """The file to write so that jobs of this store start from it; None if it is there as it should
    be, or if there can be none: jobs start without it then."""
    path = _start.cache_path(root)
    known = _start.open_cache(path)
    if known is not None:
        known.close()
        if _start.is_unchanged(known.stamps):
            return None
    argv = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(argv, capture_output=True, check=True, timeout=_PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return None
    return path, done.stdout


def contents() -> bytes:
    """Which Python it is for, the stamps of the sources, and modules: those of a start first."""
    for absent in _start.WITHOUT:
        sys.modules[absent] = None  # type: ignore[assignment]  # as a start finds it
    order: dict[str, None] = {}  # an agent's modules, what a runner has besides, all others
    ends: dict[str, str] = {}
    for name in ("detslurm.exec.agent", "detslurm.exec.runner"):
        importlib.import_module(name)
        order |= dict.fromkeys(sorted(sys.modules.keys() - order.keys()))
        ends[next(reversed(order))] = name
    import detslurm.exec

    for each in pkgutil.iter_modules(detslurm.exec.__path__, "detslurm.exec."):
        if each.name not in _NOT_OF_RUNNERS:
            importlib.import_module(each.name)
    importlib.import_module("detslurm.core")
    names = [*order, *sorted(sys.modules.keys() - order.keys())]
    found = {name: _imported(name) for name in names}
    for package in _NOT_IMPORTED:
        found |= _below(package)
    modules: dict[str, _start.Entry] = {}
    code, starts = bytearray(), dict[str, int]()
    for name, module in found.items():
        if module is not None:
            origin, directories, own = module
            modules[name] = (origin, directories, None if own is None else (len(code), len(own)))
            code += own or b""
        if name in ends:
            starts[ends[name]] = len(code)
    origins = [modules[name][0] for name in ("detslurm", "msgspec")]
    origins += sorted(origin for origin, _, _ in modules.values() if is_editable(origin))
    stamps = [_start.stamp(origin) for origin in dict.fromkeys(origins)]
    return _start.written(sys.version, stamps, modules, bytes(code), starts)


def _imported(name: str) -> _Found | None:
    """A module that is imported; None if it has no file, or is not for a job."""
    spec = getattr(sys.modules[name], "__spec__", None)  # typing.io has none
    if spec is None or spec.origin is None or not spec.has_location or name.startswith(_LEFT_OUT):
        return None
    locations = spec.submodule_search_locations
    code = spec.loader.get_code(name) if hasattr(spec.loader, "get_code") else None
    return (
        spec.origin,
        None if locations is None else [os.fspath(place) for place in locations],
        None if code is None else marshal.dumps(code),
    )


def _below(package: str) -> dict[str, _Found]:
    """A package and all that is in it, in Python all of it."""
    found: dict[str, _Found] = {}
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            words = [package, *path.relative_to(folder).with_suffix("").parts]
            directories = [str(path.parent)] if words[-1] == "__init__" else None
            name = ".".join(words[:-1] if directories else words)
            code = SourceFileLoader(name, str(path)).get_code(name)
            found[name] = (str(path), directories, marshal.dumps(code))
    return found


def is_editable(origin: str) -> bool:
    """Whether a file may change alone: no installer has put it there."""
    return not origin.startswith(_STANDARD + os.sep) and "-packages" + os.sep not in origin


if __name__ == "__main__":
    sys.stdout.buffer.write(contents())
