"""The facts of a container on a node, as the job of `doctor --container` finds them."""

from __future__ import annotations

import msgspec


class InsideFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that the image's Python finds in the container.

    Attributes:
        python: Its version, such as "3.12.1".
        executable: Its path.
        problem: The error of `import detslurm`; None if that works or was not tried.
        written: Whether the process can write in these directories: `store`, `HOME`, `TMPDIR`.
        gpus: The names of GPUs that it sees, or their devices.
    """

    python: str
    executable: str
    problem: str | None = None
    written: dict[str, bool] = {}
    gpus: tuple[str, ...] = ()


class ContainerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a node and of a container there.

    Attributes:
        node: The name of the node.
        runtime: The value of `slurm.container`.
        version: The first line that the runtime's program prints of its version; None without it.
        image: The image with the facts that identify it.
        namespaces: Whether an ordinary user can make a user namespace; None if unknown.
        subuids: Whether the user has subordinate ids.
        fuse: Whether the user can open /dev/fuse.
        started: Whether the image's shell has begun.
        output: The last lines of the runtime and of the image's Python.
        inside: None where the image's Python did not run.
        gpus: The number of GPUs of the job.
        pmix: The names of the variables of PMIx in a container that srun has started; None if
            Slurm's PMIx could not be tried.
    """

    node: str
    runtime: str
    version: str | None = None
    image: str
    namespaces: bool | None = None
    subuids: bool = False
    fuse: bool = False
    started: bool = False
    output: str = ""
    inside: InsideFacts | None = None
    gpus: int = 0
    pmix: tuple[str, ...] | None = None
