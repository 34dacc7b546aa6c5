"""Other projects' launchers in a run: the options that place their ranks, and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm._base.flag import PreemptFlag
from detslurm.config.run_config import RunConfig
from detslurm.exec.entrypoint import (
    names_plain_launcher,
)
from detslurm.exec.environment import run_environment
from detslurm.exec.start_hooks import DIRECTORY, with_start_hook
from detslurm.exec.start_hooks._detslurm_launcher import launcher_name, with_placement
from detslurm.store.run_records import StartRecord


def environment(nodes: int = 1, rank: int = 0, **user: str) -> dict[str, str]:
    """The environment of the code on one of the nodes, each with two slots."""
    variables = [f"{k}={v}" for k, v in user.items()]
    return run_environment(
        base={"RANK": "7", "PET_NNODES": "9"},
        config=RunConfig.of({"environment": {"environment_variables": {"cpu": variables}}}),
        start=StartRecord(experiment=1, trial=2, run=3, hparams={}),
        experiment_dir=Path("/store/experiments/1"),
        node=f"n{rank}",
        slot_ids=[0, 1],
        gpus=[],
        peers={
            "container_addrs": [f"10.0.0.{n + 1}" for n in range(nodes)],
            "container_rank": rank,
            "container_slot_counts": [2] * nodes,
            "port": 23456,
        },
        flag="/tmp/flag",
    )


def launching(env: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in env.items() if k.startswith(("PET_", "MASTER_", "NODE_", "RANK"))}


def test_variables_place_the_ranks_and_the_users_win() -> None:
    """Those of the job's setup are of another place."""
    one = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456", "NODE_RANK": "0"}
    one |= {"PET_MASTER_PORT": "23456", "PET_RDZV_ID": "1.2.3"}
    assert launching(environment()) == one
    second = {"NODE_RANK": "1", "PET_NNODES": "2", "PET_NODE_RANK": "1"}
    second |= {"PET_MASTER_ADDR": "10.0.0.1"}
    assert launching(environment(2, 1)) == one | second
    chosen = launching(environment(MASTER_PORT="1", PET_NNODES="1:4"))
    assert chosen == one | {"MASTER_PORT": "1", "PET_NNODES": "1:4"}


C10D = ["--rdzv_backend=c10d"]
AT = ["--rdzv_endpoint=10.0.0.1:23456", "--rdzv_conf=is_host=true", "--local_addr=10.0.0.1"]
SECOND = [AT[0], "--rdzv_conf=is_host=false", "--local_addr=10.0.0.2"]
PORT = ["--main_process_port=23456"]
ALL_SLOTS = ["--multi_gpu", "--num_processes=2"]
MACHINES = ["--num_machines=2", "--machine_rank=1", "--main_process_ip=10.0.0.1"]
MACHINES += ["--deepspeed_multinode_launcher=standard"]


@pytest.mark.parametrize(
    ("command", "nodes", "options"),
    [
        (["torchrun", "--nproc_per_node=2"], 2, []),
        (["torchrun", "--standalone"], 1, []),
        (["/opt/bin/torchrun", *C10D], 1, AT),
        (["torch.distributed.run", "--rdzv-backend", "c10d"], 2, SECOND),
        (["accelerate-launch", "--cpu"], 1, PORT),
        (["accelerate-launch"], 1, [*ALL_SLOTS, *PORT]),
        (["accelerate-launch", "--num_processes", "1"], 1, PORT),
        (["accelerate.commands.launch"], 2, ["--multi_gpu", "--num_processes=4", *MACHINES, *PORT]),
        (["accelerate-launch", "--config_file=a.yaml"], 2, [*MACHINES, *PORT]),
        (["deepspeed"], 1, ["--master_port=23456", "--num_gpus=2"]),
        (["deepspeed", "--include=localhost:0"], 1, ["--master_port=23456"]),
        (["train.py", "--master_port=1"], 2, []),
        (["accelerate", "config"], 1, []),
    ],
)
def test_options_come_before_the_users(
    command: list[str], nodes: int, options: list[str], tmp_path: Path
) -> None:
    """Argument parsers take the last of two, so that the user's own win."""
    env = environment(nodes, nodes - 1) | {"HF_HOME": str(tmp_path)}
    name, *args = command
    argv = [name if "/" in name or "." not in name else "-m", *args, "train.py"]
    found = with_placement(name.rpartition("/")[2], argv, env)
    assert found == [argv[0], *options, *args, "train.py"]
    launch = with_placement("accelerate", ["accelerate", "launch", "t.py"], env)
    assert launch[:2] == ["accelerate", "launch"] and launch[-2:] == [*PORT, "t.py"]


def test_a_configuration_in_the_home_is_not_overridden(tmp_path: Path) -> None:
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate/default_config.yaml").touch()
    env = environment() | {"HF_HOME": str(tmp_path)}
    assert with_placement("accelerate-launch", ["a", "t.py"], env) == ["a", *PORT, "t.py"]


def test_deepspeed_reads_the_nodes_from_a_file_beside_the_flag(tmp_path: Path) -> None:
    env = environment(2, 1) | {"DETSLURM_PREEMPT_FLAG": str(tmp_path / "flag")}
    hosts = tmp_path / "flag-hosts"
    assert with_placement("deepspeed", ["deepspeed", "train.py"], env) == [
        "deepspeed", "--master_port=23456", f"--hostfile={hosts}", "--no_ssh", "--node_rank=1",
        "--master_addr=10.0.0.1", "train.py",
    ]  # fmt: skip
    assert hosts.read_text() == "node0 slots=2\nnode1 slots=2\n"


@pytest.mark.parametrize(
    ("argv", "command", "name"),
    [
        (["/opt/bin/torchrun", "a.py"], ["python", "/opt/bin/torchrun", "a.py"], "torchrun"),
        (["-m", "a.py"], ["python3", "-u", "-m", "torch.distributed.run", "a.py"],
         "torch.distributed.run"),
        (["-m"], ["python3", "-Xdev", "-um", "torch.distributed.run"], "torch.distributed.run"),
        (["-m"], ["python3", "-mtorch.distributed.run"], "torch.distributed.run"),
        (["-c"], ["python3", "-c", "torchrun"], "-c"),
        ([""], ["python3"], ""),
    ],
)  # fmt: skip
def test_a_launcher_is_known_by_its_program_or_module(
    argv: list[str], command: list[str], name: str
) -> None:
    assert launcher_name(argv, command) == name


@pytest.mark.parametrize(
    ("entrypoint", "names"),
    [
        ("torchrun --nproc_per_node=2 train.py", True),
        ("cd src && /opt/env/bin/torchrun train.py", True),
        (["accelerate", "launch", "train.py"], True),
        ("python3 -m torch.distributed.run train.py", True),
        ("bash scripts/run.sh 3", True),
        ("bash missing.sh", False),
        ("python3 -m detslurm.launch.torch_distributed train.py", False),
        ("python3 -m detslurm.launch.deepspeed train.py", False),
        ("python3 train.py --deepspeed ds.json", False),
        ("python3 deepspeed_train.py", False),
    ],
)
def test_an_entrypoint_names_a_launcher(
    entrypoint: str | list[str], names: bool, tmp_path: Path
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/run.sh").write_text('set -e\ntorchrun train.py "$@"\n')
    assert names_plain_launcher(entrypoint, tmp_path) is names


LAUNCHER = """\
import os, signal, sys

reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
if "handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
print("ready", sys.argv[1:], flush=True)
while os.read(reader, 1):
    print("lives", flush=True)
"""


@pytest.mark.parametrize("own", [[], ["handler"]])
def test_a_launcher_outlives_a_preemption_and_no_other_signal(
    own: list[str], tmp_path: Path
) -> None:
    """Whether it has a handler or not, whatever else its Python imports at its start."""
    (tmp_path / "torchrun").write_text(LAUNCHER)
    (tmp_path / "sitecustomize.py").write_text("print('own', flush=True)\n")
    flag = PreemptFlag.create()
    env = {**os.environ, **environment(), "DETSLURM_PREEMPT_FLAG": flag.name}
    env = with_start_hook({**env, "PYTHONPATH": str(tmp_path)}, "launcher")
    command = [sys.executable, str(tmp_path / "torchrun"), *C10D, *own]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "own\n"
            assert child.stdout.readline() == f"ready {[*AT, *C10D, *own]}\n"
            child.send_signal(signal.SIGUSR1)
            assert child.stdout.readline() == "lives\n"
            if not own:
                child.send_signal(signal.SIGTERM)
                assert child.wait(60) == -signal.SIGTERM, "no preemption: it ends, as without us"
                return
            child.send_signal(signal.SIGTERM)
            assert child.stdout.readline() == "handled\n"
            assert child.stdout.readline() == "lives\n"
            flag.request_preemption()
            for sig in (signal.SIGTERM, signal.SIGINT):
                child.send_signal(sig)
                assert child.stdout.readline() == "lives\n"
        finally:
            child.kill()
            flag.close()


WITHOUT_DETSLURM = """\
import os, signal, time

print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
reader, writer = os.pipe()
if not (child := os.fork()):
    os.write(writer, b".")  # Python forgets signals that come while it forks
    while True:
        time.sleep(0.01)
os.read(reader, 1)
os.kill(child, signal.SIGTERM)
print(os.waitpid(child, 0)[1], flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("lives")
"""


@pytest.mark.parametrize(
    ("is_preempted", "words"), [(True, ["train.py"]), (False, ["-um", "train"])]
)
def test_sigterm_is_unblocked_in_a_python_without_detslurm(
    is_preempted: bool, words: list[str], tmp_path: Path
) -> None:
    """Else a pool would wait for its workers without end. A preemption's does not end it."""
    (tmp_path / "detslurm.py").write_text("raise ImportError")
    (tmp_path / "train.py").write_text(WITHOUT_DETSLURM)
    flag = PreemptFlag.create()
    path = {"PYTHONPATH": str(tmp_path), "DETSLURM_PREEMPT_FLAG": flag.name}
    env = with_start_hook({**os.environ, **path}, "sigterm")
    if is_preempted:
        flag.request_preemption()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        command = [sys.executable, *words]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, timeout=120)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        flag.close()
    shown = f"set()\n{signal.SIGTERM:d}\n"
    assert done.stdout.decode() == (f"{shown}lives\n" if is_preempted else shown)
    assert done.returncode == (0 if is_preempted else -signal.SIGTERM) and not done.stderr


def test_python_without_a_launcher_is_as_it_was(tmp_path: Path) -> None:
    code = "import signal, sys; print(sys.argv, signal.getsignal(signal.SIGTERM), sys.path)"
    env = with_start_hook(os.environ, "launcher")
    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert b"['-c'] 0 " in shown.stdout.replace(b"Handlers.SIG_DFL", b"0") and not shown.stderr
    assert str(DIRECTORY).encode() not in shown.stdout
