"""Writes the module cache that jobs start from: what runners and agents import, in one file.

`_start` has the other half. Modules of the standard library are in it, too: three quarters of the
names that these imports look up are theirs.
"""

from __future__ import annotations

import importlib
import marshal
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

from detslurm import _start

_NOT_OF_RUNNERS = frozenset({"detslurm.exec.sampling"})  # a process of its own, for Optuna
_LEFT_OUT = (
    *("__editable__", "__main__", "_distutils_hack", "sitecustomize", "usercustomize"),
    *_start.WITHOUT,
)
_STANDARD = str(Path(os.__file__).parent)
_PATIENCE = 60.0


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

    for found in pkgutil.iter_modules(detslurm.exec.__path__, "detslurm.exec."):
        if found.name not in _NOT_OF_RUNNERS:
            importlib.import_module(found.name)
    modules: dict[str, _start.Entry] = {}
    code, starts = bytearray(), dict[str, int]()
    for name in [*order, *sorted(sys.modules.keys() - order.keys())]:
        if not name.startswith(_LEFT_OUT) and (spec := _spec(name)) is not None:
            origin, directories, own = spec
            modules[name] = (origin, directories, None if own is None else (len(code), len(own)))
            code += own or b""
        if name in ends:
            starts[ends[name]] = len(code)
    # Those first that an upgrade of a distribution replaces: a job looks at no others.
    origins = [modules[name][0] for name in ("detslurm", "msgspec")]
    origins += sorted(origin for origin, _, _ in modules.values() if not _is_standard(origin))
    stamps = [_start.stamp(origin) for origin in dict.fromkeys(origins)]
    return _start.written(sys.version, stamps, modules, bytes(code), starts)


def _spec(name: str) -> tuple[str, list[str] | None, bytes | None] | None:
    """Where a module is from, its directories, its code if it is Python; None without a file."""
    spec = getattr(sys.modules[name], "__spec__", None)  # typing.io has none
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    locations = spec.submodule_search_locations
    code = spec.loader.get_code(name) if hasattr(spec.loader, "get_code") else None
    return (
        spec.origin,
        None if locations is None else [os.fspath(place) for place in locations],
        None if code is None else marshal.dumps(code),
    )


def _is_standard(origin: str) -> bool:
    return origin.startswith(_STANDARD + os.sep) and "-packages" not in origin


if __name__ == "__main__":
    sys.stdout.buffer.write(contents())
