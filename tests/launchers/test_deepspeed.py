"""DeepSpeed's launcher on one node: its options, what workers inherit, their failures, signals."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from detslurm._base.addresses import LOOPBACK
from detslurm.launch import deepspeed as launcher
from detslurm.launch import extensions
from detslurm.launch.arguments import LauncherArgs, UsageError
from detslurm.launch.deepspeed_options import NodeOptions, read
from detslurm.launch.nodes import Nodes
from tests.launchers.workers import Workers, needs_deepspeed, whole_imports

STRANGE = 'it\'s "quoted" = $HOME\nand `more`; \\ \t ü'
SCRIPT = [sys.executable, "train.py"]


@pytest.fixture
def workers(tmp_path: Path) -> Workers:
    return Workers("detslurm.launch.deepspeed", ["--num_gpus=2"], tmp_path)


@needs_deepspeed
def test_a_worker_that_fails_ends_the_other(workers: Workers) -> None:
    """And each gets the whole environment of the user, whatever a value holds; nothing goes through
    ssh or a file."""
    workers.one_fails("STRANGE", STRANGE, {"STRANGE": STRANGE})


@needs_deepspeed
def test_a_preemption_ends_nobody(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    whole_imports(monkeypatch)
    workers.all_are_preempted("USE_DEEPSPEED", "1")


@needs_deepspeed
def test_no_worker_outlives_the_launcher(workers: Workers) -> None:
    workers.launcher_is_killed("USE_DEEPSPEED", "1")


def test_nobody_waits_long_for_the_end_of_the_others() -> None:
    """DeepSpeed's launcher waits half a minute for each worker that stays: so it is ended."""
    script = """
import os, sys
from detslurm.launch.ranks import ExitLog, report_exit
from detslurm.launch.supervision import supervise
exits, wait = ExitLog(), "import time; time.sleep(600)"
child = f"from detslurm.launch.ranks import report_exit; report_exit(1, 5); {wait}"
sys.exit(supervise([sys.executable, "-c", child], os.environ, exits=exits, failure_grace=0.1))
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-H", "hosts", "--num_nodes=2"], r"-H, --num_nodes: Slurm decides"),
        (["-Hhosts"], r"error: -H: "),
        (["--include=a:0@b:1"], r"--include"),
        (["--num_gpus", "4"], r"--num_gpus: Slurm decides"),
        (["--num_gpus", "many"], r"--num_gpus: expected a number, not 'many'"),
        (["--master_port", "29500", "--quiet"], r"error: --master_port: .* leave it out"),
        (["--launcher", "slurm", "--ssh_port=22"], r"--launcher, --ssh_port"),
        (["--autotuning", "run"], r"--autotuning: .* search over"),
        (["--venv_script", "a.sh"], r"--venv_script: .* slurm\.setup"),
    ],
)
def test_options_that_are_slurms_business(options: list[str], words: str) -> None:
    """Each is named, with what decides instead."""
    with pytest.raises(UsageError, match=words):
        read(LauncherArgs(options, SCRIPT), slots=2)


def sorted_out(options: Sequence[str], command: list[str], slots: int | None = 2) -> NodeOptions:
    return read(LauncherArgs(list(options), command), slots=slots)


def test_options_of_the_deepspeed_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """What means something on a node goes to DeepSpeed's launcher; the command says the rest."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 3})
    assert sorted_out([], SCRIPT) == NodeOptions([], None, SCRIPT)
    assert sorted_out(["--no_local_rank", "--no_python"], ["./run.sh"]).command == ["./run.sh"]
    assert sorted_out(["--module"], ["pkg.train", "-m"]).command == [
        *(sys.executable, "-m", "pkg.train", "-m")
    ]
    assert sorted_out(["--module"], SCRIPT).command == SCRIPT
    assert sorted_out(["--num_gpus=2", "-q"], SCRIPT) == NodeOptions(["-q"], 2, SCRIPT)
    assert sorted_out(["--num_accelerators", "3"], SCRIPT, slots=None).workers == 3
    logs = ["--enable_each_rank_log", "logs", "--save_pid"]
    assert sorted_out(logs, SCRIPT).passed_on == [
        *("--enable_each_rank_log=logs", f"--save_pid={os.getpid()}")
    ]
    bound = "--bind_cores_to_rank"
    assert sorted_out([bound], SCRIPT).passed_on == [bound, "--bind_core_list=3,5"]
    chosen = "--bind_core_list=0-3"
    assert sorted_out([bound, chosen], SCRIPT).passed_on == [bound, chosen]


def test_the_launcher_of_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows how many workers each node has, and leaves the devices as Slurm has given them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7,GPU-9")
    nodes = Nodes(("10.0.0.1", "10.0.0.2"), rank=1, slots=2, port=20123)
    argv = launcher.node_launcher(NodeOptions(["-q"], None, SCRIPT), nodes, 2, nodes.port)
    assert argv[:4] == [sys.executable, "-m", "deepspeed.launcher.launch", "-q"]
    given = dict(arg.partition("=")[::2] for arg in argv)
    world = json.loads(base64.urlsafe_b64decode(given["--world_info"]))
    assert list(world.values()) == [[0, 1], [0, 1]]
    assert (given["--node_rank"], given["--master_addr"]) == ("1", "10.0.0.1")
    assert given["--master_port"] == "20123"
    assert argv[argv.index("env") : -7] == ["env", "CUDA_VISIBLE_DEVICES=GPU-7,GPU-9"]


def test_what_workers_inherit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's choices win; where no accelerator is found DeepSpeed need not search for one."""
    monkeypatch.setattr(launcher, "_ACCELERATORS", ("null",))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    nodes = Nodes((LOOPBACK,), rank=0, slots=2)
    hosts = launcher.hostfile(nodes, 2)
    assert hosts is not None and hosts.read_text() == f"{LOOPBACK} slots=2\n"
    env = launcher.environment(nodes, 2, hosts)
    assert env["DET_DEEPSPEED_HOSTFILE_PATH"] == str(hosts)
    assert (env["USE_DEEPSPEED"], env["DET_CHIEF_IP"]) == ("1", LOOPBACK)
    assert env["OMP_NUM_THREADS"] == "5" and "DS_ACCELERATOR" not in env
    monkeypatch.setattr(launcher, "_ACCELERATORS", ("nosuch*",))
    assert launcher.environment(nodes, 2, None)["DS_ACCELERATOR"] == "cpu"
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert launcher.environment(nodes, 2, None)["DS_ACCELERATOR"] == "cuda"


def test_kernels_are_kept_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environments, images and kinds of processors don't take each other's; a lock that a killed
    build has left is reported, for torch waits for it without a word."""
    home = {"XDG_CACHE_HOME": str(tmp_path)}
    mine = extensions.directory(home)
    assert mine.is_relative_to(tmp_path) and mine == extensions.directory(home)
    with monkeypatch.context() as image:
        image.setattr(extensions, "_text", "another {}".format)
        assert extensions.directory(home) != mine
    with monkeypatch.context() as image:
        image.setattr(extensions, "distributions", lambda name: [])
        assert extensions.directory(home) != mine
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    assert extensions.directory(home) != mine
    assert extensions.directory({**home, "TORCH_EXTENSIONS_DIR": "/mine"}) == Path("/mine")
    lock = mine / "fused_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert list(extensions.waits(mine)) == []
    os.utime(lock, (time.time() - 3600, time.time() - 3600))
    (message,) = extensions.waits(mine)
    assert f"{lock} is 60 minutes old" in message
    assert list(extensions.waits(tmp_path / "nosuch")) == []


def test_a_signal_as_deepspeed_reports_it() -> None:
    assert [launcher.exit_status(n) for n in (0, 1, 143, 247)] == [0, 1, 143, 137]


def test_without_deepspeed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that says how to install it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert launcher.main(["train.py"]) == 1
    assert "pip install 'detslurm[deepspeed]'" in capsys.readouterr().err
