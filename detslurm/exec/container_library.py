"""Our code for a container: an image needs nothing of it installed.

It is copied to where the working directory lies, which every container sees, and comes last on
PYTHONPATH. msgspec, which is compiled, lies there for the Python that runs here, and counts only
where the image has none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from detslurm._base import contract

_PACKAGES = ("detslurm", "detslurm.launch", "detslurm.sdk", "detslurm.templates")
_COMPILED = ("msgspec",)
# Where an image has its Python, too: such a directory is nothing of the host's own.
_EVERYWHERE = ("/bin", "/usr/bin", "/usr/local/bin")


def library_of(workdir: Path) -> Path:
    """The directory for what a container needs of detslurm, beside the working directory."""
    return workdir.with_name(f"{workdir.name}-lib")


def with_library(env: Mapping[str, str], library: Path) -> dict[str, str]:
    """The environment in which an image's Python finds our code; makes the library.

    Raises `OSError`.
    """
    _make(library)
    return {"PYTHONNOUSERSITE": "1", **_with_path(_image_first(env), library)}


def _image_first(env: Mapping[str, str]) -> dict[str, str]:
    """The host's Python last in PATH, for runtimes that hand it on: the image's own comes first."""
    here = str(Path(sys.executable).parent)
    path = env.get("PATH", os.defpath).split(os.pathsep)
    if here in _EVERYWHERE:
        return dict(env)
    return {**env, "PATH": os.pathsep.join([*(p for p in path if p != here), here])}


def _with_path(env: Mapping[str, str], library: Path) -> dict[str, str]:
    """The environment in which Python finds our code in the library, after all that it finds."""
    package = _origin("detslurm")
    found = [Path(p) for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    path = [
        str(library / p.relative_to(package.parent) if p.is_relative_to(package) else p)
        for p in found
    ]
    return {
        **env,
        "PYTHONPATH": os.pathsep.join([*path, str(library)]),
        contract.LIBRARIES: str(library),
    }


def _make(place: Path) -> None:
    """Copy what a rank needs of the host's Python."""
    place.mkdir(mode=0o700)
    for name in _PACKAGES:
        _copy(name, place / name.replace(".", "/"))
    for name in _COMPILED:
        _copy(name, place / str(sys.implementation.cache_tag) / name)


def _copy(name: str, target: Path) -> None:
    # Without the modes of a read-only installation: more is copied into a package's own folder,
    # such as detslurm/launch, and all of it is to be removed.
    shutil.copytree(
        _origin(name),
        target,
        ignore=shutil.ignore_patterns("__pycache__"),
        copy_function=shutil.copyfile,
        dirs_exist_ok=True,
    )
    for folder, _, _ in os.walk(target):
        Path(folder).chmod(0o700)


def _origin(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{name} is not installed as files")
    return Path(spec.origin).parent
