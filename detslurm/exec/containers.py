"""The container of the code on a node: its mounts, its first line, and what it leaves.

Agent and runner stay outside. The code's directory, the store and all else that the code needs of
the node lie at the same paths inside.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from detslurm._base import contract
from detslurm._base.node_files import PREFIX, remove, temporary_directory
from detslurm._base.process import Identity
from detslurm.config.run_config import RunConfig
from detslurm.exec.container_library import library_of, with_library
from detslurm.exec.container_runtimes import (
    LABEL,
    OF_IMAGE,
    Container,
    Mount,
    command,
    names_of_image,
)
from detslurm.exec.entrypoint import CANT_BEGIN
from detslurm.exec.environment import slot_type_of, user_variables
from detslurm.exec.node_run import NodeRun, NotReady
from detslurm.storage import SharedFS, from_config

WORKDIR = "/run/determined/workdir"
"""The working directory in the containers of Determined, whose configurations may name it."""

# Variables that the steps of MPI ranks get from the launcher; the rest is that of their own node.
_FROM_LAUNCHER = ("DET_", "DETSLURM_", "OMPI_", "PMIX_", "PRTE_", "UCX_")
_PODMAN = ("podman", "podman-hpc")
_SECONDS = 60.0  # for a call of Podman about containers that were left

# The first line inside. It changes to the code's directory, for some runtimes begin elsewhere, and
# leaves a mark: without it, the runtime has failed, and not the code.
_BEGIN = """\
cd "$1" || { echo "detslurm: the container does not see $1 of the node" >&2; exit 125; }
true > "$2"; shift 2; exec "$@"
"""


def contained(
    node: NodeRun, argv: Sequence[str], environment: dict[str, str], workdir: Path
) -> tuple[list[str], dict[str, str]]:
    """The command in the container of this node's code, and its environment; makes its library.

    Raises `OSError`, `NotReady`, and `ValueError` for a mount that the runtime has no form for.
    """
    found = with_library(environment, library_of(workdir))
    if node.allocation.node_count > 1:
        found[contract.CONTAINER] = json.dumps(_rank_words(node, workdir, found))
    return [*_words(node, workdir, found), *argv], found


def _words(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> list[str]:
    """The words before a command in the container."""
    begin = ["sh", "-c", _BEGIN, "sh", str(workdir), str(mark_of(workdir))]
    if prefix := node.config.slurm.container_prefix:
        return [*(word.replace("{workdir}", str(workdir)) for word in prefix), *begin]
    return [*command(_container(node, workdir, environment)), *begin]


def mark_of(workdir: Path) -> Path:
    """The file that the first line in the container makes."""
    return workdir / ".container-began"


def _rank_words(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> list[str]:
    """The words before a rank that srun starts on this node: our Python there, its container."""
    names = dict.fromkeys(("OMPI_*", "PMIX_*", "PMI_*", "SLURM_*"), "")
    words = _words(node, workdir, {**environment, **names})
    return [sys.executable, shutil.which(words[0]) or words[0], *words[1:]]


def runtime_of(config: RunConfig) -> str:
    """The name of the program that starts the container."""
    return next(iter(config.slurm.container_prefix), config.slurm.container)


def _container(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> Container:
    slurm, gpus = node.config.slurm, node.allocation.slot_ids
    slot_type = slot_type_of(node.config, gpus)
    own = user_variables(node.config, gpus)
    return Container(
        slurm.container,
        _found(node.config.image(slot_type) or "", slurm.container, slurm.image_root),
        list(_mounts(node, workdir, environment)),
        sorted(name for name in environment if name not in OF_IMAGE or name in own),
        None if slot_type == "cpu" else slot_type,
        slurm.container_args,
        workdir.name,
        node.allocation.nodes[node.rank],
    )


def _found(image: str, runtime: str, root: str | None) -> str:
    """The image below `slurm.image_root`, or as it was given."""
    if root is None or image.startswith("/"):
        return image
    places = (Path(root, name) for name in names_of_image(runtime, image))
    return next((str(place) for place in places if place.exists()), image)


# -- mounts --------------------------------------------------------------------------------------


def _mounts(node: NodeRun, workdir: Path, environment: Mapping[str, str]) -> Iterator[Mount]:
    """First the paths that are the same inside, then those that the user names."""
    if node.config.slurm.private_tmp:
        private = _private_tmp(workdir)
        private.mkdir(mode=0o700, exist_ok=True)
        yield Mount(str(private), "/tmp")
    paths = {*filter(None, _same_paths(node, workdir, environment))}
    real = {os.path.realpath(path) for path in paths}
    tops = sorted(path for path in real if not _is_below(path, real))
    yield from (Mount(path, path) for path in tops)
    # A link that lies in such a directory is seen there, another link is not.
    links = (path for path in sorted(paths - real) if not _is_below(path, {"/", *tops}))
    yield from (Mount(os.path.realpath(path), path) for path in links)
    yield Mount(str(workdir), WORKDIR)
    for mount in node.config.bind_mounts:
        if not Path(mount.host_path).exists():
            here = os.uname().nodename
            raise NotReady(f"{CANT_BEGIN}: bind_mounts: {mount.host_path} is not on {here}")
        target = str(workdir / mount.container_path)
        yield Mount(mount.host_path, target, mount.read_only, mount.propagation)


def _same_paths(
    node: NodeRun, workdir: Path, environment: Mapping[str, str]
) -> Iterator[str | None]:
    yield environment.get("HOME")
    yield str(node.experiment.store.path)
    flag = environment[contract.PREEMPT_FLAG]
    if node.config.slurm.private_tmp:
        yield from (str(workdir), environment[contract.LIBRARIES], flag)
    else:
        yield from ("/tmp", temporary_directory(), str(Path(flag).parent))
    storage = from_config(node.config.checkpoint_storage)
    if isinstance(storage, SharedFS):
        if node.config.checkpoint_storage["type"] == "shared_fs":
            storage.base.mkdir(parents=True, exist_ok=True)
        if storage.base.exists():  # of a `directory` the user alone may know
            yield str(storage.base)
    if (outputs := node.start.outputs) is not None:
        yield outputs.path


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path != place and path.startswith(f"{place.rstrip('/')}/") for place in places)


def _private_tmp(workdir: Path) -> Path:
    return workdir.with_name(f"{workdir.name}-tmp")


# -- the end -------------------------------------------------------------------------------------


def blame(config: RunConfig, workdir: Path, status: int, last_line: str) -> str | None:
    """Why the container could not begin; None if the code has begun in it."""
    if mark_of(workdir).exists():
        return None
    line = f": {last_line}" if last_line else ""
    return f"{CANT_BEGIN}; {runtime_of(config)} exited with {status}{line}"


def remove_traces(config: RunConfig, workdir: Path) -> None:
    """Remove what the container of an ended run has left, and Podman's of dead agents."""
    for place in (library_of(workdir), _private_tmp(workdir)):
        remove(place)
    runtime = config.slurm.container
    if runtime not in _PODMAN:
        return
    listing = ["ps", "--all", "--no-trunc", "--filter", f"label={LABEL}"]
    form = f'{{{{.ID}}}} {{{{index .Labels "{LABEL}"}}}}'
    lines = _asked([runtime, *listing, "--format", form]).splitlines()
    owners = dict(line.split(" ", 1) for line in lines if " " in line)
    if dead := [name for name, owner in owners.items() if _is_over(owner, workdir)]:
        _asked([runtime, "rm", "--force", *dead])


def _is_over(owner: str, workdir: Path) -> bool:
    process = Identity.parse(owner.removeprefix(PREFIX))
    return owner == workdir.name or (process is not None and process.is_dead())


def _asked(argv: Sequence[str]) -> str:
    """The output of a runtime's program; empty where it fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def starting_environment(launchers: Mapping[str, str]) -> dict[str, str]:
    """The environment of a step outside, whose ranks start containers on their nodes.

    A launcher inside asks for it, and its PATH and libraries mean nothing out here.
    """
    own = {name: value for name, value in launchers.items() if name.startswith(_FROM_LAUNCHER)}
    return {**os.environ, **own}
