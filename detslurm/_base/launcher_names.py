"""Recognise programs that only start and watch the code's processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

_PROGRAMS = frozenset(
    {
        *("torchrun", "accelerate", "deepspeed", "ds", "horovodrun", "composer"),
        *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "orted", "prted"),
        *("hydra_pmi_proxy", "hydra_bstrap_proxy", "srun", "slurmstepd", "timeout", "tee"),
        *("apptainer", "singularity", "starter", "starter-suid", "Apptainer", "Singularity"),
        *("podman", "conmon", "crun", "runc", "enroot", "docker"),
    }
)
_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands"),
    *("deepspeed.launcher", "horovod.runner"),
    *("detslurm.launch", "detslurm.exec", "detslurm.record"),
    *("jupyterlab", "notebook", "jupyter_server"),  # whose kernels are the code
)
# Python's options without a value may stand before it in one word: `-um`.
_MODULE = re.compile(r"-[bBdEhiIOPqsSuvVx]*m(.*)")


def is_launcher(argv: Sequence[str]) -> bool:
    """Whether this command line is that of a launcher or a container's runtime."""
    if not argv:
        return True  # nothing is known of it: a kernel thread, or a process that ends
    name, *arguments = argv
    if not is_python(name):
        # A title of its own: "Apptainer runtime parent".
        return PurePath(name.split(" ")[0]).name in _PROGRAMS
    return _is_launching(arguments)


def _is_launching(arguments: Sequence[str]) -> bool:
    """The same of Python's arguments: those before the script are options."""
    for index, word in enumerate(arguments):
        if index and arguments[index - 1] in ("-W", "-X"):
            continue  # the value of an option
        if (module := _MODULE.fullmatch(word)) is not None:
            return (module[1] or "".join(arguments[index + 1 : index + 2])).startswith(_MODULES)
        if not word.startswith("-"):
            parts = PurePath(word).parts
            is_module = "deepspeed" in parts[:-1] and "launcher" in parts[:-1]
            return PurePath(word).name in _PROGRAMS or is_module
        if word == "-c":
            return False
    return False


def is_python(program: str) -> bool:
    """Whether a program is Python, by its name."""
    return PurePath(program).name.startswith(("python", "pypy"))
