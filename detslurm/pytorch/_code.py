"""The code that a checkpoint carries, so that its trial can be made again elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import detslurm
from detslurm._info import EXPERIMENT_DIR_ENV


def copy_code(target: Path, kind: type) -> None:
    """Copy the experiment's frozen code; by hand, the modules beside that of the trial's class.

    Only modules in use are taken: copying all that lies in the directory would copy data sets and
    environments, too.
    """
    frozen = _frozen()
    if frozen is not None:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(frozen, target, symlinks=True, ignore=ignored)
        return
    target.mkdir()
    root = _import_root(kind)
    if root is None:
        return
    for file in sorted(set(_modules_below(root))):
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def _frozen() -> Path | None:
    experiment = os.environ.get(EXPERIMENT_DIR_ENV)
    code = Path(experiment) / "code" if experiment else None
    return code if code is not None and code.is_dir() else None


def _import_root(kind: type) -> Path | None:
    """The directory that the module of a class was imported from."""
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    depth = kind.__module__.count(".") + (Path(file).stem == "__init__")
    return Path(file).absolute().parents[depth]


def _modules_below(folder: Path) -> Iterator[Path]:
    installed = (sysconfig.get_path("stdlib"), str(Path(detslurm.__file__).parent))
    apart = tuple(f"{place}{os.sep}" for place in installed)
    for module in list(sys.modules.values()):  # thousands: no Path for each
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or file.startswith(apart):
            continue
        # The environment may lie below the code: a .venv in it, or ~/.local for code in ~.
        if any(f"{os.sep}{name}{os.sep}" in file for name in ("site-packages", "dist-packages")):
            continue
        path = Path(file).absolute()
        if path.is_relative_to(folder) and path.is_file():
            yield path
