"""`detslurm.import_from_path()`: import a checkpoint's code without leaving traces."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_in_use = threading.Lock()


@contextmanager
def import_from_path(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside the block, import modules from `path` first, and none from the working directory.

    Modules of the working directory that were imported before are hidden inside the block; modules
    that came from `path` are forgotten after it. No `__pycache__` is written.

    Args:
        path: The directory to import from.

    Raises:
        RuntimeError: Inside another such block, of this thread or of any other.

    Example:
        from pathlib import Path

        import detslurm as det

        code = Path("checkpoint/code")
        code.mkdir(parents=True)
        (code / "model_def.py").write_text("layers = 3")
        with det.import_from_path(code):
            import model_def
        assert model_def.layers == 3
    """
    if not _in_use.acquire(blocking=False):
        raise RuntimeError("import_from_path() can't be nested, nor used by two threads at once")
    try:
        folder, cwd = Path(path).absolute(), Path.cwd()
        before, finder = list(sys.path), WithoutCache(folder)
        hidden = {name: sys.modules.pop(name) for name in _modules_in(cwd)}
        sys.path[:] = [str(folder), *(p for p in before if p != "" and Path(p) != cwd)]
        sys.meta_path.insert(0, finder)
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            sys.path[:] = before
            for name in _modules_in(folder):
                del sys.modules[name]
            sys.modules.update(hidden)
    finally:
        _in_use.release()


def _modules_in(folder: Path) -> list[str]:
    """Names of modules whose files are in a directory, but for installed ones and the script."""
    return [name for name, module in list(sys.modules.items()) if _is_in(name, module, folder)]


def _is_in(name: str, module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if name == "__main__" or not isinstance(file, str):
        return False
    inside = Path(file).absolute()
    if not inside.is_relative_to(folder):
        return False
    parts = inside.relative_to(folder).parts
    return "site-packages" not in parts and "dist-packages" not in parts and not _ours(name)


def _ours(name: str) -> bool:
    # A developer in a checkout of detslurm needs it inside the block, too.
    return name.partition(".")[0] in ("detslurm", "determined")


class WithoutCache(MetaPathFinder):
    """Finds modules below one directory, and keeps Python from writing bytecode there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        places = [str(self._folder)] if path is None else list(path)
        below = [p for p in places if Path(p).is_relative_to(self._folder)]
        spec = PathFinder.find_spec(name, below, target) if below else None
        if spec is None or spec.loader is None:
            return None  # a directory without modules gives way to an installed package
        if type(spec.loader) is SourceFileLoader:
            spec.loader = _Uncached(spec.loader.name, spec.loader.path)
        return spec


class _Uncached(SourceFileLoader):
    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        pass
