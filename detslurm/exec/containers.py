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
from detslurm.config.run_config import RunBindMount
from detslurm.exec.container_image import image_path
from detslurm.exec.container_library import library_of, with_library
from detslurm.exec.container_run import CANT_BEGIN, first_line, private_tmp
from detslurm.exec.container_runtimes import (
    OF_IMAGE,
    PROGRAMS,
    Container,
    Mount,
    command,
)
from detslurm.exec.environment import slot_type_of, user_variables
from detslurm.exec.node_run import NodeRun, NotReady
from detslurm.exec.podman import PODMAN, without_lost_runtime_dir
from detslurm.storage import SharedFS, from_config

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of images without one
# Variables whose value outside is another: that of the node's list of users, or the runtime's own.
_LOST = {"apptainer": ("HOME",)} | dict.fromkeys(("charliecloud", *PODMAN), ("TMPDIR",))
_OF_NODE = ("PATH", "LD_LIBRARY_PATH")  # which a runtime itself needs
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
    argv = [*_words(node, workdir, found), *first_line(workdir), *argv]
    return argv, found if node.config.slurm.container_prefix else _of_runtime(found)


def _of_runtime(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the program that starts a container: the code's, with the node's own
    variables where the image has its own."""
    found = {name: value for name, value in environment.items() if name not in OF_IMAGE}
    return found | {name: os.environ[name] for name in _OF_NODE if name in os.environ}


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
    given = {name: value for name, value in own.items() if name in OF_IMAGE}
    given |= {
        name: environment[name] for name in _LOST.get(slurm.container, ()) if name in environment
    }
    mounts = list(_mounts(node, workdir, environment))
    if slurm.container == "charliecloud":
        mounts = _with_targets(mounts, Path(image))
        given = {"PATH": _path_in(Path(image)), **given}
    return Container(
        slurm.container,
        _program(slurm.container),
        image,
        mounts,
        sorted(environment.keys() - OF_IMAGE - given.keys()),
        None if slot_type == "cpu" else slot_type,
        slurm.container_args,
        workdir.name,
        node.allocation.nodes[node.rank],
        given,
    )


def _program(runtime: str) -> str:
    """The path of the runtime's program. Raises `NotReady`."""
    names = PROGRAMS[runtime]
    if found := next(filter(None, map(shutil.which, names)), None):
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
    targets = {mount.target for mount in mounts}
    for mount in mounts:
        if not _is_below(mount.target, targets):
            _make_place(Path(f"{image}{mount.target}"), mount.source)
    if Path(f"{image}{contract.CONTAINER_WORKDIR}").exists():
        return list(mounts)
    return [m for m in mounts if not Path(m.target).is_relative_to(contract.CONTAINER_WORKDIR)]


def _make_place(target: Path, source: str) -> None:
    """Make the directory or the file that a mount hides, where that is possible."""
    is_file = Path(source).is_file()
    with suppress(OSError):
        (target.parent if is_file else target).mkdir(parents=True, exist_ok=True)
        if is_file:
            target.touch()


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
        for target in _targets(mount, workdir):
            yield Mount(mount.host_path, target, mount.read_only, mount.propagation)


def _targets(mount: RunBindMount, workdir: Path) -> Iterator[str]:
    """The places of a user's mount: a path below the working directory is seen by both its names.

    Not all runtimes make places in what they mount, as this directory.
    """
    target = Path(contract.CONTAINER_WORKDIR, mount.container_path)
    if target.is_relative_to(contract.CONTAINER_WORKDIR):
        below = workdir / target.relative_to(contract.CONTAINER_WORKDIR)
        _make_place(below, mount.host_path)
        yield str(below)
    yield str(target)


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
