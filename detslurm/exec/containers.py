"""The container of the code on a node: its mounts, its first line, and what it leaves.

Agent and runner stay outside. The code's directory, the store and all else that the code needs of
the node lie at the same paths inside.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from detslurm._base import contract
from detslurm._base.access import user_name
from detslurm._base.node_files import temporary_directory
from detslurm.exec.container_image import image_path
from detslurm.exec.container_library import library_of, with_library
from detslurm.exec.container_run import first_line, private_tmp
from detslurm.exec.container_runtimes import (
    OF_IMAGE,
    PROGRAMS,
    Container,
    Mount,
    command,
)
from detslurm.exec.entrypoint import CANT_BEGIN
from detslurm.exec.environment import slot_type_of, user_variables
from detslurm.exec.node_run import NodeRun, NotReady
from detslurm.exec.podman import PODMAN, without_lost_runtime_dir
from detslurm.storage import SharedFS, from_config

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of images without one
# Variables that the steps of MPI ranks get from the launcher; the rest is that of their own node.
_FROM_LAUNCHER = ("DET_", "DETSLURM_", "OMPI_", "PMIX_", "PRTE_", "UCX_")


def contained(
    node: NodeRun, argv: Sequence[str], environment: dict[str, str], workdir: Path
) -> tuple[list[str], dict[str, str]]:
    """The command in the container of this node's code, and its environment; makes its library.

    Raises `OSError`, `NotReady`, and `ValueError` for a mount that the runtime has no form for.
    """
    # Charliecloud wants a name of the user.
    named = {"USER": user_name(), **without_lost_runtime_dir(environment)}
    if (tmpdir := tmpdir_of(node, environment)) is not None:
        named["TMPDIR"] = tmpdir
    found = with_library(named, library_of(workdir))
    if node.allocation.node_count > 1:
        found[contract.CONTAINER] = json.dumps(_rank_words(node, workdir, found))
    return [*_words(node, workdir, found), *first_line(workdir), *argv], found


def tmpdir_of(node: NodeRun, environment: Mapping[str, str]) -> str | None:
    """TMPDIR of the code: a private /tmp takes the place of the job's own."""
    slurm, found = node.config.slurm, environment.get("TMPDIR")
    is_job_own = found is not None and found == os.environ.get("TMPDIR")
    return "/tmp" if is_job_own and slurm.private_tmp and not slurm.container_prefix else found


def _words(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> list[str]:
    """The words before a command in the container."""
    if prefix := node.config.slurm.container_prefix:
        return [word.replace("{workdir}", str(workdir)) for word in prefix]
    return command(_container(node, workdir, environment))


def _rank_words(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> list[str]:
    """The words before a rank that srun starts on this node: our Python there, its container."""
    names = dict.fromkeys(("OMPI_*", "PMIX_*", "PMI_*", "SLURM_*"), "")
    words = _words(node, workdir, {**environment, **names})
    return [sys.executable, *words, *first_line(workdir, is_rank=True)]


def _container(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> Container:
    slurm, gpus = node.config.slurm, node.allocation.slot_ids
    slot_type, own = slot_type_of(node.config, gpus), user_variables(node.config, gpus)
    image = image_path(node.config.image(slot_type) or "", slurm.container, slurm.image_root)
    mounts, path = list(_mounts(node, workdir, environment)), None
    if slurm.container == "charliecloud":
        mounts = _with_targets(mounts, Path(image))
        path = own.get("PATH") or _path_in(Path(image))
    return Container(
        slurm.container,
        _program(slurm.container, environment),
        image,
        mounts,
        sorted(name for name in environment if name not in OF_IMAGE or name in own),
        None if slot_type == "cpu" else slot_type,
        slurm.container_args,
        workdir.name,
        node.allocation.nodes[node.rank],
        environment.get("TMPDIR"),
        path,
        environment.get("HOME"),
    )


def _program(runtime: str, environment: Mapping[str, str]) -> str:
    """The path of the runtime's program. Raises `NotReady`."""
    path, names = environment.get("PATH"), PROGRAMS[runtime]
    if found := next(filter(None, (shutil.which(name, path=path) for name in names)), None):
        return found
    here = os.uname().nodename
    raise NotReady(f"{CANT_BEGIN}: {' or '.join(names)} is not in the PATH of {here}")


def _path_in(image: Path) -> str:
    """The PATH of an image that Charliecloud has built or pulled."""
    with suppress(OSError):
        lines = (image / "ch" / "environment").read_text(errors="replace").splitlines()
        paths = [line.removeprefix("PATH=") for line in lines if line.startswith("PATH=")]
        return paths[-1] if paths else _PATH
    return _PATH


def _with_targets(mounts: Sequence[Mount], image: Path) -> list[Mount]:
    """The mounts whose places exist in an image that is a directory; makes those that don't.

    Charliecloud makes none, and its own message names a missing target.
    """
    for mount in mounts:
        target, is_file = Path(f"{image}{mount.target}"), Path(mount.source).is_file()
        with suppress(OSError):
            (target.parent if is_file else target).mkdir(parents=True, exist_ok=True)
            if is_file:
                target.touch()
    return [
        m
        for m in mounts
        if m.target != contract.CONTAINER_WORKDIR or Path(f"{image}{m.target}").exists()
    ]


# -- mounts --------------------------------------------------------------------------------------


def _mounts(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> Iterator[Mount]:
    """First the paths that are the same inside, then those that the user names."""
    if node.config.slurm.private_tmp:
        private = private_tmp(workdir)
        private.mkdir(mode=0o700, exist_ok=True)
        yield Mount(str(private), "/tmp")
    yield from same_mounts(_same_paths(node, workdir, environment))
    if node.config.slurm.container in PODMAN:  # it has its own, of 64 MB
        yield Mount("/dev/shm", "/dev/shm")
    yield Mount(str(workdir), contract.CONTAINER_WORKDIR)
    for mount in node.config.bind_mounts:
        if not Path(mount.host_path).exists():
            here = os.uname().nodename
            raise NotReady(f"{CANT_BEGIN}: bind_mounts: {mount.host_path} is not on {here}")
        target = str(workdir / mount.container_path)
        yield Mount(mount.host_path, target, mount.read_only, mount.propagation)


def same_mounts(paths: Iterable[str]) -> Iterator[Mount]:
    """The mounts that show these paths inside, with the directories that links lead to."""
    there = {path for path in paths if Path(path).exists() and path != "/"}
    real = {os.path.realpath(path) for path in there}
    shown = {path for path in real if not _is_below(path, real)}
    yield from (Mount(path, path) for path in sorted(shown))
    # A link in such a directory is seen there, another link is not.
    for path in sorted(there - real):
        if not _is_below(path, shown):
            shown.add(path)
            yield Mount(os.path.realpath(path), path)


def _same_paths(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> Iterator[str]:
    yield environment.get("HOME", "/")
    yield str(node.experiment.store.path)
    flag = environment[contract.PREEMPT_FLAG]
    if node.config.slurm.private_tmp:
        yield from (str(workdir), environment[contract.LIBRARIES], flag)
        yield environment.get(contract.RECORD, "/")
    else:
        yield from ("/tmp", temporary_directory(), str(Path(flag).parent))
    storage = from_config(node.config.checkpoint_storage)
    if isinstance(storage, SharedFS):
        # The storage makes its directory at the first checkpoint.
        places = (storage.base, *storage.base.parents)
        yield next((str(place) for place in places if place.exists()), "/")
    if (outputs := node.start.outputs) is not None and outputs.path is not None:
        yield outputs.path


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path != place and path.startswith(f"{place.rstrip('/')}/") for place in places)


def starting_environment(launchers: Mapping[str, str]) -> dict[str, str]:
    """The environment of a step outside, whose ranks start containers on their nodes.

    A launcher inside asks for it, and its PATH and libraries mean nothing out here.
    """
    own = {name: value for name, value in launchers.items() if name.startswith(_FROM_LAUNCHER)}
    return {**os.environ, **own}
