"""The same calls over MPI: under mpirun, and under a real Slurm's srun."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from detslurm.core.transports.health import DistributedError
from detslurm.core.transports.mpi.world import check_size
from tests.cluster import User
from tests.cluster.waiting import wait_for
from tests.distributed import openmpi, scenarios
from tests.distributed.openmpi import run_mpi

REPOSITORY = Path(__file__).resolve().parents[2]
RANK = [sys.executable, "-m", "tests.distributed.mpi_rank"]
Result = subprocess.CompletedProcess[str]
MPIRUN = shutil.which("mpirun")
ENV = openmpi.ENV | {"PYTHONPATH": str(REPOSITORY)}


def _old_library() -> str | None:
    """The system's own MPI library when it is older than MPI 4."""
    said = subprocess.run([MPIRUN, "--version"], capture_output=True, text=True) if MPIRUN else None
    old = said is not None and re.search(r"\(Open MPI\) 4\.", said.stdout)
    return find_library("mpi") if old else None


OWN_MPIRUN = Path(sys.executable).with_name("mpirun")
FROM_SLURM = """\
from detslurm.core import DistributedContext
from tests.distributed import scenarios

dist = DistributedContext.from_slurm(chief_ip="127.0.0.1")
scenarios.collectives(dist)
print(f"done rank={dist.rank} of {dist.size} node={dist.cross_rank}", flush=True)
dist.close()
"""

OLD_LIBRARY = _old_library()

pytestmark = [
    pytest.mark.skipif(find_spec("mpi4py") is None, reason="MPI: mpi4py is not installed"),
]
needs_mpirun = pytest.mark.skipif(MPIRUN is None, reason="MPI: there is no mpirun")


def mpirun(
    count: int,
    *args: str,
    rank: Sequence[str] = RANK,
    **env: str,
) -> Result:
    """Run MPI processes on this machine, whatever Slurm's job this is part of; status 124 of those
    that hang."""
    assert MPIRUN is not None
    start = partial(
        subprocess.run,
        [MPIRUN, "--oversubscribe", "-n", str(count), *rank, *args],
        cwd=REPOSITORY,
        env=os.environ | ENV | env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=180,
    )
    try:
        return run_mpi(start)
    except subprocess.TimeoutExpired as err:
        return Result(err.cmd, 124, (err.stdout or b"").decode(errors="replace"))  # bytes, always


def since(death: Path) -> float:
    """How many seconds ago a rank died."""
    return time.monotonic() - float(death.read_text())


def done(output: str, case: str | None = None) -> list[str]:
    """The ranks that have done all, or this scenario."""
    line = r"done (rank=\d+ of \d+ node=\d+(?: mpi=(?:True|False))?)"
    return sorted(re.findall(line if case is None else rf"{line} in {case}\.", output))


# With so many ranks; the last scenarios of two are those in which a rank leaves before the others.
TOGETHER = {
    2: [
        "collectives/2", "unequal/2", "large/1,1",
        "different_calls/2", "different_calls_large/2", "unpicklable/2",
        "one_leaves/2", "goodbyes/2",
    ],
    3: ["collectives/1,2", "different_scopes/3"],
    4: ["early_leaver/4"],
}  # fmt: skip


@pytest.fixture(scope="module")
def together() -> dict[int, Result]:
    """All scenarios with as many ranks, one after the other in the same processes."""
    return {size: mpirun(size, *cases) for size, cases in TOGETHER.items()}


@needs_mpirun
@pytest.mark.parametrize(
    ("size", "case"), [(size, case) for size, cases in TOGETHER.items() for case in cases]
)
def test_every_rank_an_mpi_process(size: int, case: str, together: dict[int, Result]) -> None:
    """The collective suite under mpirun."""
    said = together[size].stdout
    assert len(done(said, case)) == size, said


@needs_mpirun
@pytest.mark.parametrize("size", TOGETHER)
def test_every_rank_leaves_mpi(size: int, together: dict[int, Result]) -> None:
    """In order, also after calls that a failure has cut short."""
    assert together[size].returncode == 0, together[size].stdout


@needs_mpirun
@pytest.mark.nightly
def test_a_gigabyte() -> None:
    """The largest object that is promised, both ways."""
    result = mpirun(2, "huge/2")
    assert result.returncode == 0, result.stdout


@needs_mpirun
@pytest.mark.skipif(OLD_LIBRARY is None, reason="MPI: the system has no Open MPI 4")
@pytest.mark.parametrize("cases", [["collectives/2", "different_calls/2"], ["collectives/3,2"]])
def test_a_library_older_than_mpi_4(cases: list[str]) -> None:
    """The same over Open MPI 4, which has no persistent collective calls."""
    assert OLD_LIBRARY is not None
    size = sum(int(n) for n in cases[0].partition("/")[2].split(","))
    result = mpirun(size, *cases, MPI4PY_LIBMPI=OLD_LIBRARY)
    assert [len(done(result.stdout, case)) for case in cases] == [size] * len(cases), result.stdout
    assert result.returncode == 0, result.stdout


PER_NODE = ["collectives/2,1", "different_calls/2,1", "unpicklable/2,1"]


@pytest.fixture(scope="module")
def per_node() -> Result:
    """Scenarios in the ranks of one launcher per node, one after the other."""
    return mpirun(2, "per-node", *PER_NODE)


@needs_mpirun
@pytest.mark.parametrize("case", PER_NODE)
def test_one_mpi_process_per_node(case: str, per_node: Result) -> None:
    """Under a launcher per node, the local chiefs talk MPI, and only they load it."""
    assert done(per_node.stdout, case) == [
        "rank=0 of 3 node=0 mpi=True",
        "rank=1 of 3 node=0 mpi=False",
        "rank=2 of 3 node=1 mpi=True",
    ], per_node.stdout


@needs_mpirun
def test_launchers_end_well(per_node: Result) -> None:
    """Those of nodes, once all of their ranks have left."""
    assert per_node.returncode == 0, per_node.stdout


@needs_mpirun
def test_two_runs_side_by_side() -> None:
    """Both started by hand by one user on one machine: nobody meets ranks of the other."""
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: mpirun(2, "per-node", "side_by_side/2,1"), range(2)))
    for result in results:
        assert result.returncode == 0, result.stdout
        assert len(done(result.stdout)) == 3


@needs_mpirun
@pytest.mark.parametrize("scenario", ["killed", "fails"])
def test_a_rank_that_dies_ends_the_job(scenario: str, tmp_path: Path) -> None:
    """Killed, or by an exception that nobody catches: the job is over in seconds, not hanging."""
    death = tmp_path / "death"
    result = mpirun(2, f"{scenario}/2", **{scenarios.DEATH: str(death)})
    assert result.returncode != 0
    assert since(death) < 100


@pytest.mark.skipif(not OWN_MPIRUN.exists(), reason="MPI: PyPI's openmpi is not installed")
@pytest.mark.parametrize("options", ["--rtos recoverable,continuous", "--with-ft ulfm"])
def test_a_rank_dies_under_a_launcher_that_goes_on(options: str, tmp_path: Path) -> None:
    """Where the job does not end by itself, the others raise, and can still leave.

    What becomes of mpirun is its own affair: asked to go on, Open MPI 5's returns 0 or hangs
    without a process once in some thirty aborts.
    """
    argv = [str(OWN_MPIRUN), *options.split(), "--oversubscribe", "-n", "3", *RANK]
    output, death = tmp_path / "output", tmp_path / "death"
    env = os.environ | ENV | {scenarios.DEATH: str(death)}
    with output.open("w") as out:
        launcher = subprocess.Popen([*argv, "killed/3"], cwd=REPOSITORY, env=env, stdout=out)
    try:
        wait_for(lambda: len(done(output.read_text())) == 2, 180, "the others raise")
        wait_for(lambda: not running(launcher.pid), 100, "all ranks leave")
        assert since(death) < 100
    finally:
        launcher.kill()
        launcher.wait()
    assert done(output.read_text()) == [f"rank={i} of 3 node=0 mpi=True" for i in range(2)]


def running(parent: int) -> list[int]:
    """The children of a process that have not ended."""
    processes = [found.info for found in psutil.process_iter(["pid", "ppid", "status"])]
    children = [info for info in processes if info["ppid"] == parent]
    return [info["pid"] for info in children if info["status"] != psutil.STATUS_ZOMBIE]


def srun(user: User, *args: str, check: bool = True, env: Mapping[str, str] | None = None) -> str:
    argv = ["srun", "--mem=0", "--export=ALL", *args]
    fences = {"SLURM_PMIX_FENCE": "ring"}  # as in the steps that detslurm starts
    env = ENV | fences | dict(env or {})
    found = user.run(*argv, env=env, cwd=REPOSITORY, check=False)
    assert (found.returncode == 0) == check, found.stderr
    return found.stdout


def placed(user: User, shape: Sequence[int]) -> dict[str, str]:
    """What has srun place so many tasks on each of four nodes."""
    nodes = sorted(set(user.run("sinfo", "-hN", "-o%N").stdout.split()))
    assert user.cwd is not None
    path = user.cwd / "tasks"
    path.write_text("".join(f"{node}\n" * n for node, n in zip(nodes, shape, strict=True)))
    return {"SLURM_HOSTFILE": str(path)}


def lines_of(shape: Sequence[int]) -> list[str]:
    size = sum(shape)
    nodes = [node for node, count in enumerate(shape) for _ in range(count)]
    return sorted(f"rank={rank} of {size} node={node}" for rank, node in enumerate(nodes))


def under_srun(user: User, shape: Sequence[int], env: Mapping[str, str]) -> None:
    options = ("--mpi=pmix", "-N4", f"-n{sum(shape)}", "-marbitrary", "--kill-on-bad-exit=1")
    env = placed(user, shape) | dict(env)
    output = srun(user, *options, *RANK, "collectives/real", env=env)
    assert done(output) == [f"{line} mpi=True" for line in lines_of(shape)]


def test_four_nodes_of_mixed_sizes_under_srun(alice: User) -> None:
    """`srun --mpi=pmix` with 3, 1, 2 and 1 ranks: each knows its place."""
    under_srun(alice, (3, 1, 2, 1), {})


@pytest.mark.skipif(OLD_LIBRARY is None, reason="MPI: the system has no Open MPI 4")
def test_four_nodes_of_mixed_sizes_with_the_systems_library(alice: User) -> None:
    """`srun --mpi=pmix` with 1, 1, 2 and 1 ranks over Open MPI 4."""
    assert OLD_LIBRARY is not None
    under_srun(alice, (1, 1, 2, 1), {"MPI4PY_LIBMPI": OLD_LIBRARY} | openmpi.ONE_MACHINE)


def test_four_nodes_of_mixed_sizes_by_tcp(alice: User) -> None:
    """`from_slurm` with 1, 1, 2 and 1 ranks, which Slurm writes as 1(x2),2,1; without MPI."""
    shape = (1, 1, 2, 1)
    options = ("--mpi=none", "-N4", "-n5", "-marbitrary")
    output = srun(alice, *options, sys.executable, "-c", FROM_SLURM, env=placed(alice, shape))
    assert done(output) == lines_of(shape)


def test_rank_0_is_where_the_step_has_put_it(alice: User) -> None:
    """The hosts' file of `--distribution=arbitrary` begins with a later node; the first component
    of a heterogeneous job is on a later node, too, and its nodes have other numbers of tasks."""
    assert alice.cwd is not None
    code = f"{FROM_SLURM}import os; print(dist.rank, 'on', os.environ['SLURMD_NODENAME'])"
    argv = ("--mpi=none", "-n4", sys.executable, "-c", code)
    (alice.cwd / "hosts").write_text("n3\nn1\nn1\nn2\n")
    arbitrary = {"SLURM_HOSTFILE": str(alice.cwd / "hosts"), "DET_CHIEF_IP": "127.0.0.1"}
    output = srun(alice, "-N3", "-marbitrary", *argv, env=arbitrary)
    nodes = {"0": "0", "1": "1", "2": "1", "3": "2"}
    lines = [f"rank={rank} of 4 node={node}" for rank, node in nodes.items()]
    assert done(output) == lines
    assert "0 on n3" in output
    head = ("--mpi=none", "-wn2", "-n1", sys.executable, "-c", code)
    output = srun(alice, *head, ":", "-wn1,n3", "-n3", sys.executable, "-c", code)
    assert done(output) == lines
    assert "0 on n2" in output


def test_four_launchers_of_mixed_sizes_under_srun(alice: User) -> None:
    """One MPI process a node, and 1, 3, 2 and 1 ranks below them."""
    options = ("--mpi=pmix", "-N4", "--ntasks-per-node=1")
    output = srun(alice, *options, *RANK, "per-node", "collectives/1,3,2,1")
    assert len(done(output)) == 7
    assert output.count("mpi=True") == 4


def test_a_killed_task_ends_the_step(alice: User) -> None:
    """PMIx ends the whole step within seconds, although srun was told to let the others live."""
    assert alice.cwd is not None
    death = alice.cwd / "death"
    argv = ("--mpi=pmix", "-K0", "-N2", "--ntasks-per-node=2", *RANK, "killed/real")
    srun(alice, *argv, check=False, env={scenarios.DEATH: str(death)})
    assert since(death) < 100


def test_silent_singletons_raise_with_the_remedy(alice: User) -> None:
    """A step without PMI makes every task an MPI world of its own: an error says what to do."""
    code = "from detslurm.core import DistributedContext; DistributedContext.from_mpi()"
    result = alice.run(
        "srun", "--mem=0", "--mpi=none", "-n2", "env", "-u", "SLURM_JOBID",
        sys.executable, "-c", code, env=ENV, check=False,
    )  # fmt: skip
    assert result.returncode != 0
    assert "--mpi=pmix" in result.stderr


def test_a_world_of_the_wrong_size() -> None:
    """The error names both sizes, and what to do."""
    with pytest.raises(
        DistributedError, match=r"MPI has 1 process, but 4 were expected.*pmix.*tcp"
    ):
        check_size(1, 4, {"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "4"}, "Open MPI v5")


CRASHED = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f8cf59162c0 (most recent call first):
  File "{}", line 241 in {}
  File "/x/detslurm/core/transports/mpi/world.py", line 24 in open_world
"""
GAVE_UP = "[n2:8006] *** An error occurred in MPI_Init_thread\n"


def test_only_what_mpi_init_has_lost_is_started_again() -> None:
    """A crash of code of ours, or in any other call of MPI, is a failure at once."""
    own = CRASHED.format("/x/detslurm/core/transports/mpi/world.py", "place_in")
    importing = CRASHED.format("<frozen importlib._bootstrap>", "_call_with_frames_removed")
    outputs = [importing, GAVE_UP, own, "fine"]
    found = run_mpi(lambda: subprocess.CompletedProcess((), 1, "", outputs.pop(0)))
    assert (found.stderr, outputs) == (own, ["fine"])
