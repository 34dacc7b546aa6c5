"""The same calls over MPI: under mpirun, and under a real Slurm's srun."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

import pytest

from detslurm.core.transports.health import DistributedError
from detslurm.core.transports.mpiworld import check_size
from tests.cluster import User

REPOSITORY = Path(__file__).resolve().parents[2]
RANK = [sys.executable, "-m", "tests.distributed.mpi_rank"]
MPIRUN = shutil.which("mpirun")
ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PYTHONPATH": str(REPOSITORY),
}


def _old_library() -> str | None:
    """The system's own MPI library when it is older than MPI 4."""
    said = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True) if MPIRUN else None
    old = said is not None and re.search(r"\(Open MPI\) 4\.", said.stdout)
    return find_library("mpi") if old else None


OLD_LIBRARY = _old_library()

pytestmark = [
    pytest.mark.skipif(find_spec("mpi4py") is None, reason="MPI: mpi4py is not installed"),
]
needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason="MPI: there is no mpirun")


def mpirun(count: int, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run MPI processes on this machine, whatever Slurm's job this is part of."""
    assert MPIRUN is not None
    return subprocess.run(
        [MPIRUN, "--oversubscribe", "-n", str(count), *RANK, *args],
        cwd=REPOSITORY,
        env=os.environ | ENV | env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
    )


def done(output: str) -> list[str]:
    return sorted(re.findall(r"done (rank=\d+ of \d+ node=\d+(?: mpi=(?:True|False))?)", output))


@needs_mpirun
@pytest.mark.parametrize(
    ("scenario", "shape"),
    [
        ("collectives", "2"),
        ("collectives", "1,2"),
        ("unequal", "2"),
        ("large", "1,1"),
        ("different_calls", "2"),
        ("different_calls_large", "2"),
        ("different_scopes", "3"),
        ("unpicklable", "2"),
        ("one_leaves", "2"),
        ("last_words", "2"),
    ],
)
def test_every_rank_an_mpi_process(scenario: str, shape: str) -> None:
    """The collective suite under mpirun."""
    size = sum(int(n) for n in shape.split(","))
    result = mpirun(size, scenario, shape)
    assert result.returncode == 0, result.stdout
    assert len(done(result.stdout)) == size


@needs_mpirun
@pytest.mark.skipif(OLD_LIBRARY is None, reason="MPI: the system has no Open MPI 4")
@pytest.mark.parametrize(
    ("scenario", "shape"), [("collectives", "2"), ("collectives", "3,2"), ("different_calls", "2")]
)
def test_a_library_older_than_mpi_4(scenario: str, shape: str) -> None:
    """The same over Open MPI 4, which has no persistent collective calls."""
    assert OLD_LIBRARY is not None
    size = sum(int(n) for n in shape.split(","))
    result = mpirun(size, scenario, shape, MPI4PY_LIBMPI=OLD_LIBRARY)
    assert result.returncode == 0, result.stdout
    assert len(done(result.stdout)) == size


@needs_mpirun
@pytest.mark.parametrize("scenario", ["collectives", "different_calls", "unpicklable"])
def test_one_mpi_process_per_node(scenario: str) -> None:
    """Under a launcher per node, the local chiefs talk MPI, and only they load it."""
    result = mpirun(2, scenario, "2,1", "per-node")
    assert result.returncode == 0, result.stdout
    assert done(result.stdout) == [
        "rank=0 of 3 node=0 mpi=True",
        "rank=1 of 3 node=0 mpi=False",
        "rank=2 of 3 node=1 mpi=True",
    ]


@needs_mpirun
@pytest.mark.parametrize("scenario", ["killed", "fails"])
def test_a_rank_that_dies_ends_the_job(scenario: str) -> None:
    """Killed, or by an exception that nobody catches: the job is over in seconds, not hanging."""
    began = time.monotonic()
    result = mpirun(2, scenario, "2")
    assert result.returncode != 0
    assert time.monotonic() - began < 20


def srun(user: User, *args: str) -> str:
    argv = ["srun", "--mem=0", "--export=ALL", *args]
    return user.run(*argv, env=ENV, cwd=REPOSITORY, timeout=90).stdout


def test_two_nodes_under_srun(alice: User) -> None:
    """`srun --mpi=pmix` with 2 nodes x 2 ranks: every rank knows its place."""
    output = srun(alice, "--mpi=pmix", "-N2", "--ntasks-per-node=2", *RANK, "collectives", "real")
    assert done(output) == [f"rank={i} of 4 node={i // 2} mpi=True" for i in range(4)]


def test_one_task_per_node_under_srun(alice: User) -> None:
    """`srun --mpi=pmix` with one launcher per node: MPI between nodes, local IPC inside."""
    output = srun(
        alice, "--mpi=pmix", "-N2", "--ntasks-per-node=1", *RANK, "collectives", "2,2", "per-node"
    )
    assert done(output) == [f"rank={i} of 4 node={i // 2} mpi={i % 2 == 0}" for i in range(4)]


def test_srun_without_mpi(alice: User) -> None:
    """`from_slurm` under plain `srun --mpi=none`: TCP between nodes."""
    code = (
        "from detslurm.core import DistributedContext; from tests.distributed import scenarios\n"
        "dist = DistributedContext.from_slurm(chief_ip='127.0.0.1'); scenarios.collectives(dist)\n"
        "print(f'done rank={dist.rank} of {dist.size} node={dist.cross_rank}'); dist.close()"
    )
    output = srun(alice, "--mpi=none", "-N2", "--ntasks-per-node=2", sys.executable, "-c", code)
    assert done(output) == [f"rank={i} of 4 node={i // 2}" for i in range(4)]


def test_silent_singletons_raise_with_the_remedy(alice: User) -> None:
    """A step without PMI makes every task an MPI world of its own: an error says what to do."""
    code = "from detslurm.core import DistributedContext; DistributedContext.from_mpi()"
    result = alice.run(
        "srun", "--mem=0", "--mpi=none", "-n2", "env", "-u", "SLURM_JOBID",
        sys.executable, "-c", code, env=ENV, check=False, timeout=90,
    )  # fmt: skip
    assert result.returncode != 0
    assert "--mpi=pmix" in result.stderr


def test_a_world_of_the_wrong_size() -> None:
    """The error names both sizes, and what to do."""
    with pytest.raises(
        DistributedError, match=r"MPI has 1 process, but 4 were expected.*pmix.*tcp"
    ):
        check_size(1, 4, {"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "4"}, "Open MPI v5")
