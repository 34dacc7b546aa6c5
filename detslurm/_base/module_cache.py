"""Writes module caches: what runners, agents and users' programs import of us, in one file for
each store, and what commands import, in one for each user.

`cached_modules` has the other half. Modules of the standard library are in it, too: three quarters
of the names that these imports look up are theirs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import marshal
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

from detslurm._base import cached_modules, pythonpath, startup

_NOT_OF_RUNNERS = frozenset({"detslurm.exec.sampling"})  # a process of its own, for Optuna
_LEFT_OUT = (
    *("__editable__", "__main__", "_distutils_hack", "sitecustomize", "usercustomize"),
    *cached_modules.WITHOUT,
)
_NOT_IMPORTED = ("detslurm.launch", "detslurm.pytorch")  # the latter imports torch
_OF_EVERY_COMMAND = (
    *("detslurm.cli", "detslurm.config", "detslurm.sdk", "detslurm.slurm", "detslurm.store"),
)
_STANDARD = str(Path(os.__file__).parent)
_PATIENCE = 60.0


class _Found(NamedTuple):
    """A module: the stamp of its file, a package's directories, its code if it is Python."""

    stamp: cached_modules.Stamp
    directories: list[str] | None
    code: bytes | None


def refreshed(root: str) -> tuple[str, bytes] | None:
    """The file to write so that jobs of this store start from it; None if it is there as it should
    be, or if there can be none: jobs start without it then."""
    path = startup.cache_path(root)
    known = cached_modules.open_cache(path)
    if known is not None:
        known.close()
        if cached_modules.is_unchanged(known.distributions + known.editable):
            return None
    try:
        return path, _made_apart()
    except (OSError, subprocess.SubprocessError):
        return None


def _made_apart() -> bytes:
    """The contents, made by a process that has imported nothing else."""
    argv = [sys.executable, "-P", "-m", __name__]
    env = pythonpath.own_environment(os.environ)
    done = subprocess.run(argv, env=env, capture_output=True, check=True, timeout=_PATIENCE)
    return done.stdout


def contents() -> bytes:
    """Its version of Python, the stamps of the sources, and modules: those of a start first."""
    for absent in cached_modules.WITHOUT:
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
    found = {name: None if name.startswith(_LEFT_OUT) else _imported(name) for name in names}
    for package in _NOT_IMPORTED:
        found |= _below(package)
    return _written(found, ["detslurm", "msgspec"], ends)


def keep(command: cached_modules.CommandModules) -> None:
    """Write what a user's next command imports to the user's cache directory, if it is the user's
    and Python may keep code there."""
    folder = Path(command.path).parent
    if sys.dont_write_bytecode or not _is_ours(folder):
        return
    from detslurm.store import StoreError, fs

    # The command has ended; an editable installation may have a file that is being written.
    with contextlib.suppress(OSError, StoreError, SyntaxError, ValueError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fs.replace_file(command.path, _of_commands(command.cache), secret=True)


def _is_ours(folder: Path) -> bool:
    """Whether this user may write in a directory, or make it, and no other user owns the place: a
    root that has kept HOME leaves nothing there that its user couldn't remove."""
    place = next((place for place in (folder, *folder.parents) if place.exists()), None)
    if place is None or not os.access(place, os.W_OK):  # a home may be read-only on nodes
        return False
    return place.stat().st_uid in (0, os.geteuid())


def _of_commands(cache: cached_modules.Cache | None) -> bytes:
    """Pack the modules that this command and earlier ones (in `cache`) have imported, and all of
    the packages from which the next command will import other modules."""
    found: dict[str, _Found | None] = {} if cache is None else dict(_cached(cache))
    for package in _OF_EVERY_COMMAND:
        found |= _below(package)
    imported = [name for name in list(sys.modules) if cached_modules.is_of_commands(name)]
    found |= {name: _imported(name) for name in imported if name not in found}
    tops = [name for name in cached_modules.OF_COMMANDS if found.get(name) is not None]
    return _written(found, tops, {})


def _cached(cache: cached_modules.Cache) -> Iterator[tuple[str, _Found]]:
    known = {stamp[0]: stamp for stamp in cache.distributions}
    for name, (origin, directories, place) in cache.modules.items():
        with contextlib.suppress(OSError):  # it is gone, or the cache is torn
            if is_editable(origin):
                yield name, _read(name, SourceFileLoader(name, origin), origin, directories)
            else:
                code = None if place is None else bytes(cache.code(*place))
                yield name, _Found(known.get(origin, (origin, 0, 0)), directories, code)


def _written(
    found: Mapping[str, _Found | None], distributions: Sequence[str], ends: Mapping[str, str]
) -> bytes:
    """The cache's content; `ends` has the module before which all are that a start needs."""
    modules: dict[str, cached_modules.Entry] = {}
    stamps: dict[str, cached_modules.Stamp] = {}
    code, starts = bytearray(), dict[str, int]()
    for name, module in found.items():
        if module is not None:
            own = module.code
            place = None if own is None else (len(code), len(own))
            modules[name] = (module.stamp[0], module.directories, place)
            stamps[module.stamp[0]] = module.stamp
            code += own or b""
        if name in ends:
            starts[ends[name]] = len(code)
    of_each = [stamps[modules[name][0]] for name in distributions]
    editable = [stamps[origin] for origin in sorted(stamps) if is_editable(origin)]
    finder = marshal.dumps(SourceFileLoader("", cached_modules.__file__).get_code(""))
    return startup.written(sys.version, finder, (of_each, editable, modules, starts), bytes(code))


def _imported(name: str) -> _Found | None:
    """A module that is imported; None if it has no file."""
    spec = getattr(sys.modules[name], "__spec__", None)  # typing.io has none
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    source = spec.origin.endswith(".py")  # as it is now, whatever was imported
    loader = SourceFileLoader(name, spec.origin) if source else spec.loader
    directories = spec.submodule_search_locations
    own = None if directories is None else [os.fspath(place) for place in directories]
    try:
        return _read(name, loader, spec.origin, own)
    except OSError:  # a part of an archive
        return None


def _below(package: str) -> dict[str, _Found]:
    """A package and all that is in it, in Python all of it."""
    found: dict[str, _Found] = {}
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            words = [package, *path.relative_to(folder).with_suffix("").parts]
            directories = [str(path.parent)] if words[-1] == "__init__" else None
            name = ".".join(words[:-1] if directories else words)
            found[name] = _read(name, SourceFileLoader(name, str(path)), str(path), directories)
    return found


def _read(name: str, loader: Any, origin: str, directories: list[str] | None) -> _Found:
    # Before the code, which may change: the next start will see that.
    stamp = cached_modules.stamp(origin)
    code = loader.get_code(name) if hasattr(loader, "get_code") else None
    return _Found(stamp, directories, None if code is None else marshal.dumps(code))


def is_editable(origin: str) -> bool:
    """Whether a file may change alone: no installer has put it there."""
    return not origin.startswith(_STANDARD + os.sep) and "-packages" + os.sep not in origin


if __name__ == "__main__":
    sys.stdout.buffer.write(contents())
