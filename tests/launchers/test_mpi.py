"""The MPI launcher on one node, with a real MPI."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from detslurm._base.contract import RENDEZVOUS, SLOT_IDS
from detslurm._base.flag import PreemptFlag
from detslurm.launch.arguments import LauncherArgs, UsageError
from detslurm.launch.mpi import command, environment, run, step, with_given_slots
from detslurm.launch.nodes import Nodes
from tests.distributed.openmpi import ENV, run_mpi

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="no MPI: mpi4py is not installed"
)

SCRIPT = """\
import sys
from mpi4py import MPI

ranks = MPI.COMM_WORLD.allgather(MPI.COMM_WORLD.rank)
print(*ranks, flush=True)
if sys.argv[1:] and MPI.COMM_WORLD.rank == 1:
    if sys.argv[1] == "raise":
        raise ValueError("no luck")
    sys.exit(int(sys.argv[1]))
MPI.COMM_WORLD.barrier()
"""


def launch(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    argv = [sys.executable, "-m", "detslurm.launch.mpi", "-n", "3", "--", str(script), *words]
    env = {**os.environ, **ENV}
    start = partial(subprocess.run, argv, capture_output=True, text=True, env=env, timeout=240)
    return run_mpi(start)


def test_ranks_have_their_job_s_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is hidden from mpirun alone, which would start its processes through srun."""
    job = {"SLURM_TMPDIR": "/local", "SLURM_CPUS_PER_TASK": "4", "SLURM_NTASKS": "1"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "script.py"
    script.write_text(f"import os; print(*map(os.environ.get, {[*job]}))")
    argv = [sys.executable, "-m", "detslurm.launch.mpi", "--", str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **ENV})
    assert done.stdout == "[rank=0] /local 4 None\n", done.stderr


def test_mpirun_of_one_node_asks_slurm_for_nothing() -> None:
    """Whatever MPI it is of: a job has variables that make MPICH's call srun."""
    job = {
        "SLURM_JOB_ID": "7",
        "HYDRA_BOOTSTRAP": "slurm",
        "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher",
        "I_MPI_HYDRA_BOOTSTRAP": "slurm",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "--external-launcher",
    }
    found = environment({**job, "HYDRA_IFACE": "ib0"}, Nodes(("127.0.0.1",), 0, 4))
    assert found.keys().isdisjoint(job) and found["HYDRA_IFACE"] == "ib0"


def test_ranks_find_each_other(tmp_path: Path) -> None:
    """One process a slot, all in one communicator, their lines told apart."""
    done = launch(tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[rank={rank}] 0 1 2" for rank in range(3)]


@pytest.mark.parametrize("option", ["-n 2", "--n=2", "-np 2", "--np 2", "-c 2"])
def test_the_user_s_number_of_processes_is_the_only_one(option: str) -> None:
    """Of two the first wins in Open MPI 5, the last in Open MPI 4."""
    nodes = Nodes(("127.0.0.1",), 0, 4)
    given = command("mpirun", LauncherArgs(option.split(), ["run"]), nodes)
    assert given[1 : given.index(sys.executable)] == option.split()
    own = command("mpirun", LauncherArgs(["--bind-to", "core"], ["run"]), nodes)
    assert own[1:5] == ["-n", "4", "--bind-to", "core"]


@pytest.mark.parametrize("option", ["-n1", "--ntasks=1", "-N1", "--nodes=1", "-w n1"])
def test_no_node_is_left_without_a_rank(option: str) -> None:
    """Its launcher would wait for one."""
    with pytest.raises(UsageError, match="nodes"):
        run(LauncherArgs(option.split(), ["run"]), Nodes(("n1", "n2"), 0, 2), None)


def test_the_ranks_step_is_on_the_nodes_of_its_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job may have others, and GPUs of all of them together."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_GPUS": "6"}
    for name, value in {**job, "CUDA_VISIBLE_DEVICES": "0,1"}.items():
        monkeypatch.setenv(name, value)
    args, nodes = LauncherArgs(["--overcommit"], ["run"]), Nodes(("a", "b"), 0, 2)
    for found, places in (
        ("n[2-3]", ["--nodes=2", "--nodelist=n2,n3"]),
        ("n[1-3]", ["--nodes=3"]),
    ):
        monkeypatch.setenv("SLURM_STEP_NODELIST", found)
        words = step(args, nodes)[:-3]
        assert [word for word in words if word.startswith("--node")] == places
        assert {"--gres=gpu:2", "--ntasks-per-node=2", "--overcommit"} < set(words)


@pytest.mark.parametrize(("word", "status"), [("raise", 1), ("5", 5)])
def test_one_rank_that_fails_ends_all(tmp_path: Path, word: str, status: int) -> None:
    """An exception or an exit in one rank leaves nobody waiting in a collective."""
    assert launch(tmp_path, word).returncode == status


@pytest.mark.parametrize(
    ("options", "nodes", "slots"),
    [
        ("--bind-to core -np 3", 1, 3),
        ("--ntasks-per-node=3", 2, 3),
        ("--ntasks-per-node 3 --overlap", 2, 3),
        ("-n 3", 2, 1),  # of all nodes together
        ("-n 3 -n 2", 1, 3),  # as Open MPI 5
        ("--ntasks-per-node=2 --ntasks-per-node=3", 2, 3),  # as srun
        ("", 1, 1),
    ],
)
def test_slots_of_a_script_of_one_s_own(
    monkeypatch: pytest.MonkeyPatch, options: str, nodes: int, slots: int
) -> None:
    """Its arguments give their number, which workers learn, too; a job's own stays."""
    met = {"container_addrs": ["a"] * nodes, "container_slot_counts": [1] * nodes}
    monkeypatch.setenv(RENDEZVOUS, json.dumps(met))
    monkeypatch.setenv(SLOT_IDS, "[0]")
    here, args = Nodes(("a",) * nodes, 0, 1), LauncherArgs(options.split(), ["run"])
    assert with_given_slots(args, here, None) == here
    flag = PreemptFlag.create()
    assert with_given_slots(args, here, flag).slots == slots
    flag.close()
    assert json.loads(os.environ[SLOT_IDS]) == list(range(slots))
    assert json.loads(os.environ[RENDEZVOUS])["container_slot_counts"] == [slots] * nodes
