"""The code of a checkpoint, so that its trial can be made again elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import detslurm
from detslurm._base import contract
from detslurm.core._retries import keep_trying
from detslurm.storage.files import is_directory


def add_code(target: Path, kind: type, *, final: bool) -> None:
    """Let a checkpoint have its trial's code: in a job, a link to the experiment's frozen copy.

    The link is followed when the checkpoint is copied through the Core API or the commands.
    With `final` the directory is the checkpoint itself; a directory that is only uploaded gets no
    code then, for each checkpoint would send it again: `load_data.json` names its place.
    By hand nothing is frozen: the modules beside that of the trial's class are copied.
    """
    frozen = frozen_code()
    if frozen is not None:
        if final:
            with suppress(FileExistsError):  # of an attempt before
                target.symlink_to(_from(target, frozen), target_is_directory=True)
        return
    target.mkdir(exist_ok=True)
    _copy_modules(target, kind)


def frozen_code() -> Path | None:
    """The experiment's frozen code; None by hand."""
    experiment = os.environ.get(contract.EXPERIMENT_DIR)
    code = Path(experiment) / "code" if experiment else None
    return code if code is not None and keep_trying(lambda: is_directory(code)) else None


def code_of(folder: Path, load_data: Mapping[str, Any]) -> Path:
    """Where the code of a checkpoint is: in it, else where it was frozen."""
    inside, frozen = folder / "code", load_data.get("code")
    return Path(frozen) if frozen and not inside.is_dir() and Path(frozen).is_dir() else inside


def _from(target: Path, frozen: Path) -> Path:
    """The path from a checkpoint to the code: as long as both are in one store, it may move."""
    store = frozen.parents[2]
    if not target.is_relative_to(store):
        return frozen
    return Path(os.path.relpath(frozen, target.parent))


def _copy_modules(target: Path, kind: type) -> None:
    # Only modules in use: all that lies in the directory would be data sets and environments, too.
    root = _import_root(kind)
    if root is None:
        return
    for file in sorted(set(_modules_below(root))):
        copy = target / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


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
    below = f"{str(folder).rstrip(os.sep)}{os.sep}"
    for module in list(sys.modules.values()):  # thousands: no Path for each
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        if not file.startswith(os.sep) or "//" in file or "/./" in file:
            file = str(Path(file).absolute())
        if not file.startswith(below) or file.startswith(apart):
            continue
        # The environment may lie below the code: a .venv in it, or ~/.local for code in ~.
        if any(f"{os.sep}{name}{os.sep}" in file for name in ("site-packages", "dist-packages")):
            continue
        path = Path(file)
        if path.is_file():
            yield path
