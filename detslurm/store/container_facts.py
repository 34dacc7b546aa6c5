"""The facts of a container on a node, as the job of `doctor --container` finds them."""

from __future__ import annotations

import msgspec


class InsideFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the image's Python finds in the container."""

    python: str  # its version, such as "3.12.1"
    executable: str  # its path
    # The error of `import detslurm`; None if that works or was not tried.
    problem: str | None = None
    # Whether the process can write in these directories: `store`, `HOME`, `TMPDIR`.
    written: dict[str, bool] = {}
    gpus: tuple[str, ...] = ()  # the names of GPUs that it sees, or their devices


class ContainerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a node and of a container there."""

    node: str  # the name of the node
    runtime: str  # the value of `slurm.container`
    # The first line that the runtime's program prints of its version; None without it.
    version: str | None = None
    image: str  # the image with the facts that identify it
    # Whether an ordinary user can make a user namespace; None if unknown.
    namespaces: bool | None = None
    subuids: bool = False  # whether the user has subordinate ids
    fuse: bool = False  # whether the user can open /dev/fuse
    started: bool = False  # whether the image's shell has begun
    output: str = ""  # the last lines of the runtime and of the image's Python
    inside: InsideFacts | None = None  # None where the image's Python did not run
    gpus: int = 0  # the number of GPUs of the job
    # The names of PMIx's variables in a container of srun's; None if not tried.
    pmix: tuple[str, ...] | None = None
