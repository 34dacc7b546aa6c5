"""A script that knows nothing of detslurm: its own files, its own signal, torchrun and tee."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

# As for `#SBATCH --signal=USR1@120`: it saves at the signal, and resumes if there is a file.
TRAINS = """\
    import argparse, os, signal, sys, time
    import torch
    import torch.distributed as dist

    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    asked = False

    def on_signal(number, frame):
        global asked
        asked = True

    signal.signal(signal.SIGUSR1, on_signal)
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), "checkpoints/last.pt"
    os.makedirs("checkpoints", exist_ok=True)
    weight, step = torch.zeros(1), 0
    if os.path.exists(last):
        state = torch.load(last)
        weight, step = state["weight"], state["step"]
        steps = step + 5
    print(f"rank {rank} begins at {step}", flush=True)
    while step < steps:
        stop = torch.tensor([float(asked)])
        dist.all_reduce(stop)
        if stop.item() == 2:
            break
        time.sleep(0.1)
        weight += 1
        step += 1
        if rank == 0:
            print(f"step {step}", flush=True)
            torch.save({"weight": weight, "step": step}, "checkpoints/new.pt")
            os.replace("checkpoints/new.pt", last)
    print(f"rank {rank} leaves at {step}", flush=True)
    sys.exit(1 if asked else 0)
"""
CONFIG = """\
    entrypoint: torchrun --standalone --nproc-per-node=2 train.py | tee train.log
    preempt_signal: USR1
    outputs: [checkpoints, train.log]
    resources: {slots_per_trial: 2, resource_pool: low}
"""


def begins(log: str) -> list[int]:
    """Where rank 0 began in each run."""
    return [int(line.split()[-1]) for line in log.splitlines() if "rank 0 begins" in line]


@pytest.mark.slow
@pytest.mark.nightly
def test_it_is_preempted_and_resumes_from_its_own_files(desk: Desk, site: Cluster) -> None:
    """Ranks, launcher and pipe live until the signal is answered; files of the code's directory are
    no beginning; the outputs are listed, copied, the start of a fork, and deleted at the end."""
    config = desk.project(TRAINS, CONFIG)
    config.write_text(config.read_text().replace("entrypoint: python3 train.py\n", "", 1))
    desk.write("project/checkpoints/last.pt", "of a training by hand")
    args = ("slurm.sbatch_args=[--exclusive]",)
    words = [word for arg in args for word in ("--config", arg)]
    done = desk.run("submit", str(config), "--json", *words)
    number = int(unwrap(done.stdout)["experiment_id"])
    assert "project/checkpoints is left out" in done.stderr.replace("\n", " ")
    desk.wait_for_log(number, "step 5")
    node = site.job(desk.job(number))["NodeList"]
    high = ["-p", "high", "-w", node, "--exclusive", "-o", "/dev/null"]
    desk.user.run("sbatch", *high, "--wrap=sleep 1")
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    log = desk.log(number)
    assert desk.outcomes(number) == ["preempted", "completed"], log
    first, second = begins(log)
    assert first == 0 and second >= 5, log
    assert f"rank 1 leaves at {second}" in log, "it left by itself, with its step saved"
    assert "sent SIGUSR1 to 2 processes" in log

    trial = desk.trial(number)
    assert (trial.restarts, trial.latest_checkpoint) == (0, None)
    described = json.loads(desk.run("trial", "describe", str(trial.id), "--json").stdout)
    text = json.dumps(described)
    assert '"kind": "outputs"' in text and "last.pt" in text, text
    assert desk.user.cwd is not None
    place = desk.user.cwd / "copy"
    desk.run("trial", "download", str(trial.id), "--outputs", "-o", str(place))
    assert (place / "checkpoints" / "last.pt").exists() and (place / "train.log").exists()

    fork = desk.run("experiment", "fork", str(number), "--json")
    copy = int(unwrap(fork.stdout)["experiment_id"])
    desk.wait_for_state(copy, "COMPLETED", "ERROR")
    assert begins(desk.log(copy)) == [second + 5], desk.log(copy)
    run = desk.trial_dir(copy).start(1)
    assert run is not None and run.outputs is not None and run.outputs.path is not None
    folder = Path(run.outputs.path)
    assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
    desk.run("experiment", "delete", str(copy), "--yes")
    wait_for(lambda: not folder.exists(), PATIENCE, "no outputs")
