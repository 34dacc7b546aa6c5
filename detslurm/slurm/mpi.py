"""The kinds of MPI start-up that a site's srun offers."""

from __future__ import annotations

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError


def mpi_types() -> list[str]:
    """The names of `srun --mpi=list`; empty where it can't be asked."""
    try:
        done = command.call(["srun", "--mpi=list"])
    except SlurmError:  # a site profile is still good without this line
        return []
    return parse_mpi_list(done.stdout + done.stderr) if done.returncode == 0 else []


def parse_mpi_list(text: str) -> list[str]:
    """The plugin names in the listing, one an indented line; older versions list them in one."""
    names = []
    for line in text.splitlines():
        words = line.removeprefix("srun:").split()
        if len(words) == 1 and not line.rstrip().endswith((":", "...")):
            names.append(words[0])
        elif "plugin versions available:" in line:
            names += [word.strip(",") for word in line.partition("available:")[2].split()]
    return list(dict.fromkeys(names))
