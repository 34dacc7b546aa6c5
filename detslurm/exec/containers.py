"""Lets an entrypoint behind `container_prefix` find the image's Python, and us.

Our code is copied to where the working directory lies, which every container has to see, and comes
last on PYTHONPATH: so an image needs nothing installed. msgspec, which is compiled, lies there for
the Python that runs here, and counts only where the image has none.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from detslurm._base import contract
from detslurm.config.run_config import RunConfig
from detslurm.exec.environment import user_variables
from detslurm.slurm.allocation import visible_gpus

_PACKAGES = ("detslurm", "detslurm.launch", "detslurm.sdk", "detslurm.templates")
_COMPILED = ("msgspec",)
# Where an image has its Python, too: such a directory is nothing of the host's own.
_EVERYWHERE = ("/bin", "/usr/bin", "/usr/local/bin")
# Variables that the steps of MPI ranks get from the launcher; the rest is that of their own node.
_FROM_LAUNCHER = ("DET_", "DETSLURM_", "OMPI_", "PMIX_", "PRTE_", "UCX_", "PYTHONPATH")


def inside(env: Mapping[str, str], library: Path) -> dict[str, str]:
    """The environment of an entrypoint in a container; makes its library. Raises `OSError`."""
    _make(library)
    return _with_library(_image_first(env), library)


def _image_first(env: Mapping[str, str]) -> dict[str, str]:
    """The host's Python last in PATH, for runtimes that hand it on: the image's own comes first."""
    here = str(Path(sys.executable).parent)
    path = env.get("PATH", os.defpath).split(os.pathsep)
    if here in _EVERYWHERE:
        return dict(env)
    return {**env, "PATH": os.pathsep.join([*(p for p in path if p != here), here])}


def _with_library(env: Mapping[str, str], library: Path) -> dict[str, str]:
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


def starting_environment(config: RunConfig, launchers: Mapping[str, str]) -> dict[str, str]:
    """The environment of a step outside that starts a container for each rank, as the agent did.

    A launcher inside asks for it, and its PATH and libraries mean nothing out here.
    """
    own = {name: value for name, value in launchers.items() if name.startswith(_FROM_LAUNCHER)}
    variables = user_variables(config, visible_gpus(os.environ))
    return {**_image_first(os.environ), **variables, **own}
