"""The command line that starts a container, for each runtime. Pure.

All of them share the processes, the network and the user of the host: signals, local sockets and
files then work as without a container. Pyxis starts its container by a step of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

# The variables of a node's programs, which an image has its own of.
OF_IMAGE = frozenset(
    {
        "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "MANPATH", "INFOPATH",
        "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "SHELL", "TERMCAP",
    }
)  # fmt: skip
LABEL = "detslurm.owner"
"""The label of Podman's containers: the name that `own_name` has given to their agent's files."""
PROGRAMS = {
    "apptainer": ("apptainer", "singularity"),
    "charliecloud": ("ch-run",),
    "enroot": ("enroot",),
    "podman": ("podman",),
    "podman-hpc": ("podman-hpc",),
    "pyxis": ("srun",),
}
"""The programs of each runtime, of which the first that exists counts."""

# Podman finds its own state by TMPDIR, and Charliecloud mounts it as /tmp.
_SAME_TMP = ("env", "TMPDIR=/tmp")


class Mount(NamedTuple):
    """A directory or file of the node, and its place in the container."""

    source: str
    target: str
    read_only: bool = False
    propagation: str = "rprivate"


class Container(NamedTuple):
    """A container for the code of one node.

    Attributes:
        runtime: A value of `slurm.container`.
        program: Its program, as a path.
        image: A path, or the name as the user gave it.
        mounts: In the order in which they are made.
        variables: The names of the variables that the code has from outside.
        gpus: `cuda`, `rocm`, or None without GPUs.
        arguments: The user's own, for the runtime.
        owner: The process that starts it; see `LABEL`.
        node: The name of this node in Slurm.
        given: The variables that the code has inside only, where the runtime hands on no others,
            or needs its own.
    """

    runtime: str
    program: str
    image: str
    mounts: Sequence[Mount]
    variables: Sequence[str]
    gpus: str | None = None
    arguments: Sequence[str] = ()
    owner: str = ""
    node: str = ""
    given: Mapping[str, str] = MappingProxyType({})


def command(container: Container) -> list[str]:
    """The words before the command that runs in the container.

    Raises `ValueError` for a mount that the runtime has no form for.

    Example:
        >>> command(Container("enroot", "enroot", "/torch.sqsh", [Mount("/data", "/data")], ["A"]))
        ['enroot', 'start', '--mount=/data:/data', '--env=A', '/torch.sqsh']
    """
    for mount in container.mounts:
        if any(mark in path for path in mount[:2] for mark in ":,"):
            raise ValueError(f"{mount.source}: no container runtime mounts a path with : or ,")
    words = _COMMANDS[container.runtime](container)
    given = [f"{name}={value}" for name, value in container.given.items()]
    return [*words, *(["env", *given] if given else [])]


def names_of_image(runtime: str, image: str) -> list[str]:
    """The names that an image may have as a file or a directory below `image_root`."""
    if runtime == "enroot":  # as `enroot import` names it
        return [image, f"{image.replace('/', '+').replace(':', '+')}.sqsh"]
    return [image, f"{image}.sif", f"{image}.sqsh"]


def _apptainer(container: Container) -> list[str]:
    gpus = {"cuda": ["--nv"], "rocm": ["--rocm"]}.get(container.gpus or "", [])
    binds = [f"--bind={_bind(mount, 'ro')}" for mount in container.mounts]
    words = [container.program, "exec", "--no-eval", *gpus, *binds, *container.arguments]
    image = container.image
    is_name = not image.startswith(("/", ".")) and "://" not in image
    return [*words, f"docker://{image}" if is_name else image]


def _charliecloud(container: Container) -> list[str]:
    # It hands the node's variables on, shows the node's /tmp and /dev, and has no read-only mounts.
    unset = [f"--unset-env={name}" for name in sorted(OF_IMAGE)]
    own = [m for m in container.mounts if m.target != "/tmp" and not m.target.startswith("/dev/")]
    binds = [word for m in own for word in ("-b", f"{m.source}:{m.target}")]
    words = [*_SAME_TMP, container.program, *unset, *binds, *container.arguments]
    return [*words, container.image, "--"]


def _podman(container: Container) -> list[str]:
    return [*_podman_run(container), *container.arguments, container.image]


def _podman_run(container: Container) -> Iterator[str]:
    yield from (*_SAME_TMP, container.program, "run", "--rm")
    yield f"--label={LABEL}={container.owner}"
    yield from ("--pid=host", "--network=host", "--userns=keep-id")
    yield from ("--security-opt=label=disable", "--workdir=/")
    if container.gpus == "cuda":
        yield "--gpu" if container.runtime == "podman-hpc" else "--device=nvidia.com/gpu=all"
    elif container.gpus == "rocm":
        yield from ("--device=/dev/kfd", "--device=/dev/dri", "--group-add=keep-groups")
    for mount in container.mounts:
        options = f"{'ro' if mount.read_only else 'rw'},{mount.propagation}"
        yield f"--volume={mount.source}:{mount.target}:{options}"
    yield from (f"--env={name}" for name in container.variables)


def _enroot(container: Container) -> list[str]:
    read_only = "none:x-create=auto,rbind,ro"  # the fields of a line in fstab
    mounts = [f"--mount={_bind(mount, read_only)}" for mount in container.mounts]
    variables = [f"--env={name}" for name in container.variables]
    words = [container.program, "start", *mounts, *variables, *container.arguments]
    return [*words, container.image]


def _pyxis(container: Container) -> list[str]:
    # A step beside that of the agent, on this node alone.
    where = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={container.node}"]
    mounts = ",".join(_bind(mount, "ro") for mount in container.mounts)
    options = [f"--container-image={container.image}", f"--container-mounts={mounts}"]
    options += ["--no-container-mount-home", "--no-container-remap-root", "--container-workdir=/"]
    names = f"--container-env={','.join(container.variables)}"
    return [container.program, *where, *options, names, *container.arguments, "--"]


_COMMANDS: dict[str, Callable[[Container], list[str]]] = {
    "apptainer": _apptainer,
    "charliecloud": _charliecloud,
    "enroot": _enroot,
    "podman": _podman,
    "podman-hpc": _podman,
    "pyxis": _pyxis,
}


def _bind(mount: Mount, read_only: str) -> str:
    return f"{mount.source}:{mount.target}{f':{read_only}' if mount.read_only else ''}"
