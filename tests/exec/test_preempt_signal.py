"""The right processes of a run get its `preempt_signal`, and real launchers survive it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from benchmarks.experiments import Nowhere, agent_command, job_environment
from detslurm._base.child_processes import descendants
from detslurm._base.launcher_names import is_launcher
from detslurm.exec.agent_protocol import PREEMPT
from detslurm.exec.entrypoint import entrypoint_argv
from detslurm.exec.preempt_signal import PreemptSignal, ProcessFacts, recipients
from detslurm.sdk import Client
from tests.cluster.waiting import wait_for
from tests.exec.nodes import reports

PATIENCE = 180
SPAWNED = "python -c from_multiprocessing.spawn_import_spawn_main"


def processes(*lines: str) -> dict[int, ProcessFacts]:
    """From lines of `PID PARENT !|. IMAGE ARGV`, where ! has a handler."""
    found = {}
    for line in lines:
        pid, parent, catches, image, argv = line.split(" ", 4)
        words = tuple(argv.split(" "))
        if "-c" in words:
            words = (*words[:2], " ".join(words[2:]))
        python = words[0].startswith("python")
        found[int(pid)] = ProcessFacts(int(parent), words, python, catches == "!", image.encode())
    return found


TREES = {
    "ranks below a shell, torchrun and tee, and not the workers of their loaders": (
        "USR1",
        [3, 4],
        "1 0 ! a sh train.sh",
        "2 1 . b python /env/bin/torchrun --nproc-per-node=2 train.py",
        "3 2 ! c python -u train.py",
        "4 2 ! d python -u train.py",
        "5 3 ! c python -u train.py",
        "6 1 . f tee log",
    ),
    "not torchrun, which has a handler of SIGTERM": (
        "TERM",
        [2],
        "1 0 ! a python3 -m torch.distributed.run train.py",
        "2 1 ! b python3 train.py",
        f"3 2 ! c {SPAWNED}",
    ),
    "nobody while only torchrun has one": (
        "TERM",
        [],
        "1 0 ! a python3 -X dev -m torch.distributed.run train.py",
        "2 1 . b python3 train.py",
    ),
    "Lightning's other ranks, which the first starts": (
        "USR1",
        [1, 2],
        "1 0 ! a python train.py",
        "2 1 ! b python train.py",
    ),
    "ranks of torch.multiprocessing.spawn": (
        "USR1",
        [2],
        "1 0 . a python t.py",
        f"2 1 ! b {SPAWNED}",
    ),
    "a handler that is Python's own in a worker": (
        "INT",
        [1],
        "1 0 ! a python t.py",
        f"2 1 ! b {SPAWNED}",
    ),
    "ranks, not mpirun, which would send it a second time": (
        "USR1",
        [2, 3],
        "1 0 ! a mpirun -n 2 python t.py",
        "2 1 ! b python t.py",
        "3 1 ! c python t.py",
    ),
    "a shell with a trap, where Python has no handler": (
        "USR1",
        [1],
        "1 0 ! a bash train.sh",
        "2 1 . b python t.py",
    ),
    "a compiled program, and no helper of a Python": (
        "USR1",
        [1],
        "1 0 ! a ./train",
        "2 0 . b python t.py",
        "3 2 ! c /env/bin/wandb-core",
    ),
    "a container's runtime has handlers for everything": (
        "USR1",
        [],
        "1 0 ! a Apptainer runtime parent",
        "2 1 . b python t.py",
    ),
}


@pytest.mark.parametrize("case", TREES)
def test_the_processes_that_train_get_it(case: str) -> None:
    """Not those between them and the agent, nor their helpers."""
    name, expected, *lines = TREES[case]
    assert recipients(processes(*lines), signal.Signals[f"SIG{name}"]) == expected  # type: ignore[arg-type]


def test_the_agents_own_shell_traps_everything() -> None:
    """It has handlers that do nothing, and is no answer."""
    shell = ProcessFacts(0, tuple(entrypoint_argv("./train")), False, True, b"a")
    assert recipients({1: shell}, signal.SIGUSR1) == []


def test_the_agents_own_processes_are_no_answer() -> None:
    """Its matchers are Python, which has a handler of SIGINT: a compiled program would get none."""
    own = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1
    )
    with own:
        try:
            assert own.stdout is not None and own.stdout.readline()
            link = SimpleNamespace(own_processes=[own.pid])
            parents = {own.pid: os.getpid()}
            agents = PreemptSignal(
                signal.SIGINT,
                lambda: parents,
                link,  # type: ignore[arg-type]
                None,  # type: ignore[arg-type]
                in_container=False,
            )
            assert agents._read() == {}
            link.own_processes = []
            assert list(agents._read()) == [own.pid]
        finally:
            own.kill()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("/env/bin/python3.11 /env/bin/accelerate launch train.py", True),
        ("python -u -m deepspeed.launcher.launch --world_info=e30 train.py", True),
        ("python /env/lib/deepspeed/launcher/launch.py train.py", True),
        ("python -m detslurm.launch.wrap_rank 0 -- python train.py", True),
        ("python -um torch.distributed.run train.py", True),
        ("python -Ximporttime train.py", False),
        ("/opt/openmpi/bin/prted --leave-session", True),
        ("python train.py torchrun", False),
        ("python -m deepspeed_train", False),
        ("python -c import_torchrun", False),
    ],
)
def test_launchers_are_known_by_their_command_lines(command: str, expected: bool) -> None:
    """Their scripts and arguments are no launchers."""
    assert is_launcher(command.split()) is expected


# As scripts for `#SBATCH --signal=USR1@120` are: it saves, and leaves with whatever status.
TRAINS = """\
    import multiprocessing, os, pathlib, signal, sys, time
    from torch.utils.data import DataLoader

    asked = False

    def save(number, frame):
        global asked
        assert not asked, "a second time"
        asked = True

    here, rank = pathlib.Path(os.environ["HERE"]), os.environ.get("RANK", "0")
    with multiprocessing.Pool(1) as pool:  # which ends its worker by SIGTERM
        pool.map(abs, range(3))
    signal.signal(signal.SIGUSR1, save)
    loader = iter(DataLoader(range(10**9), num_workers=int(os.environ["WORKERS"])))
    while not asked:
        next(loader)
        (here / f"trains{rank}").touch()
        time.sleep(0.01)
    time.sleep(1)
    os.write(1, f"saved by {rank}\\n".encode())  # at once: others write to the same pipe
    sys.exit(3)
"""
TORCHRUN = "torchrun --standalone --nproc-per-node=2 train.py 2>&1 | tee log"


@contextmanager
def run(
    folder: Path, entrypoint: str, script: str, workers: int = 0
) -> Iterator[subprocess.Popen[bytes]]:
    """An agent with this entrypoint and SIGUSR1."""
    # Workers of a data loader meet at a socket there, whose name must be short.
    short = tempfile.mkdtemp()
    (code := folder / "code").mkdir()
    (code / "train.py").write_text(dedent(script))
    client = Client(folder / "store", connect=lambda name: Nowhere(folder / "store"))
    config = {
        "entrypoint": entrypoint,
        "searcher": {"name": "single", "metric": "loss"},
        "preempt_signal": "USR1",
    }
    experiment = client.store.experiment(client.submit(config, code).id)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    places = {"HERE": str(folder), "TMPDIR": short, "PATH": path}
    places["WORKERS"] = str(workers)
    env = job_environment(dict(os.environ) | places)
    pipe = subprocess.PIPE
    with subprocess.Popen(agent_command(experiment), env=env, stdin=pipe, stdout=pipe) as process:
        try:
            yield process
        finally:
            process.kill()
    shutil.rmtree(short)


Asking = Callable[[subprocess.Popen[bytes]], None]


def ask_by_runner(process: subprocess.Popen[bytes]) -> None:
    """As at a pause or a time limit."""
    assert process.stdin is not None
    process.stdin.write(f"{PREEMPT}\n".encode())
    process.stdin.flush()


def ask_by_slurm(process: subprocess.Popen[bytes]) -> None:
    """As at a preemption where Slurm tracks processes without cgroups: every process gets it."""
    for pid in [process.pid, *descendants(process.pid)]:
        os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(("ask", "workers"), [(ask_by_runner, 1), (ask_by_slurm, 0)])
def test_ranks_below_torchrun_and_tee_save(tmp_path: Path, ask: Asking, workers: int) -> None:
    """Each gets it once, launcher and pipe live until they have saved, and it is the answer."""
    with run(tmp_path, TORCHRUN, TRAINS, workers) as process:
        for rank in (0, 1):
            wait_for((tmp_path / f"trains{rank}").exists, PATIENCE, "training")
        ask(process)
        assert process.stdout is not None
        text = process.stdout.read().decode()
    assert "saved by 0" in text and "saved by 1" in text, text
    assert "sent SIGUSR1 to" in text and "a second time" not in text, text
    assert '"acknowledged":true' in text, text


NO_HANDLER = """\
    import os, pathlib, time

    (pathlib.Path(os.environ["HERE"]) / "trains").touch()
    time.sleep(1)
"""


def test_a_process_without_a_handler_is_left_alone(tmp_path: Path) -> None:
    """The signal would only end it: it may finish, and that is its success."""
    with run(tmp_path, "python3 train.py | cat", NO_HANDLER) as process:
        wait_for((tmp_path / "trains").exists, PATIENCE, "training")
        ask_by_runner(process)
        ended = reports(process)["ended"]
    assert (ended["exit_code"], ended["acknowledged"], ended["preempted"]) == (0, False, True)
