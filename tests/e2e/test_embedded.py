"""Batch scripts that users wrote themselves: tracked, preempted, requeued, one curve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

pytestmark = pytest.mark.cluster

# One number a step that depends on all before, saved when asked to leave.
TRAIN = """\
    import os, sys, time
    import detslurm as det

    info = det.get_cluster_info()
    with det.core.init() as core:
        step, value = 0, 1.0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step, value = eval((path / "state").read_text())
        while step < int(sys.argv[1]):
            step, value = step + 1, value * 0.9
            core.train.report_training_metrics(step, {"loss": value})
            time.sleep(float(sys.argv[2]))
            if core.preempt.should_preempt():
                with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "state").write_text(repr((step, value)))
                break
"""

# The same in the first of several ranks, while the others wait for it.
WORKER = """\
    import os, pathlib, sys, time
    import detslurm as det

    rank = int(os.environ["RANK"])
    alone = det.core.DistributedContext(
        rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1
    )
    if rank == 0:
        sys.argv = ["train.py", "40", "0.25"]
        code = pathlib.Path("train.py").read_text()
        exec(code.replace("core.init()", "core.init(distributed=alone)"))
        if step == 40:
            pathlib.Path("done").touch()
    else:
        from detslurm.core._preempt import attach_flag, survive_preemption_signal

        survive_preemption_signal(flag := attach_flag())
        print("rank", rank, "of", os.environ["WORLD_SIZE"], flush=True)
        while not flag.preempt and not pathlib.Path("done").exists():
            time.sleep(0.05)
"""


def batch(desk: Desk, lines: str, *args: str) -> str:
    """Submit a batch script of the user's own; the job's id."""
    head = "#!/bin/bash\n#SBATCH --open-mode=append --output=job.out --requeue\n"
    path = desk.write("job.sh", "")
    path.write_text(head + lines)
    return desk.user.run("sbatch", "--parsable", *args, str(path)).stdout.strip()


def wait_for_experiment(desk: Desk, steps: int) -> None:
    def there() -> bool:
        return (desk.store.path / "embedded").exists() and desk.trial(1).steps >= steps

    wait_for(there, 60, f"step {steps}")


def assert_one_curve(desk: Desk, steps: int) -> None:
    rows = [(row.steps, row.metrics["loss"]) for row in desk.metrics(1)]
    value, expected = 1.0, []
    for step in range(1, steps + 1):
        value *= 0.9
        expected.append((step, value))
    assert rows == expected


def listed(desk: Desk) -> list[tuple[int, str]]:
    rows = json.loads(desk.run("experiment", "list", "--json").stdout)
    return [(row["id"], row["state"]) for row in rows]


def test_a_plain_script_is_preempted_and_goes_on(desk: Desk, slurm: Cluster) -> None:
    """core.init() in the script that `detslurm template` prints: one trial, two runs, one curve."""
    desk.write("train.py", TRAIN)
    script = desk.run("template", "sbatch", "plain").stdout
    job = batch(desk, script.replace("train.py\n", "train.py 40 0.25\n"), "--partition=low")
    wait_for_experiment(desk, 4)
    make_room(desk)
    slurm.wait_state(job, "COMPLETED", timeout=90)
    assert desk.outcomes(1) == ["preempted", "completed"]
    runs = desk.trial(1).runs
    assert [run.job["restart_count"] for run in runs] == [0, 1]
    assert runs[1].resumed_steps > 0
    assert_one_curve(desk, 40)
    assert listed(desk) == [(1, "COMPLETED")]


def test_the_launcher_in_a_script_of_ones_own(desk: Desk, slurm: Cluster) -> None:
    """Two nodes with two workers each, preempted and requeued by Slurm: as if submitted here."""
    desk.write("train.py", TRAIN)
    desk.write("worker.py", WORKER)
    launch = "python3 -m detslurm.launch.torch_distributed --nproc-per-node=2 -- worker.py"
    job = batch(desk, f"srun --ntasks-per-node=1 {launch}\n", "--partition=low", "--nodes=2")
    wait_for_experiment(desk, 4)
    make_room(desk)
    slurm.wait_state(job, "COMPLETED", timeout=90)
    assert desk.outcomes(1) == ["preempted", "completed"]
    assert_one_curve(desk, 40)
    assert listed(desk) == [(1, "COMPLETED")]
    assert desk.user.cwd is not None
    said = (desk.user.cwd / "job.out").read_text()
    for rank in (1, 2, 3):
        assert f"[rank={rank}] rank {rank} of 4" in said


def test_an_array_is_one_experiment(desk: Desk, slurm: Cluster) -> None:
    """One trial for each element, whatever its arguments."""
    desk.write("train.py", TRAIN)
    script = "srun python3 train.py $SLURM_ARRAY_TASK_ID 0.1\n"
    job = batch(desk, script, "--array=2-8:3")
    for element in (2, 5, 8):
        slurm.wait_state(f"{job}_{element}", "COMPLETED")
    assert listed(desk) == [(1, "COMPLETED")]
    view = desk.view(1)
    assert [trial.state for trial in view.trials] == ["COMPLETED"] * 3
    tasks = [desk.trial(1, index).runs[0].job["array_task_id"] for index in range(3)]
    assert tasks == [2, 5, 8]


def test_tracking_can_be_switched_off(desk: Desk, slurm: Cluster) -> None:
    """DETSLURM_TRACK=0 in the script: nothing is written."""
    desk.write("train.py", "import detslurm as det\nassert det.get_cluster_info() is None\n")
    job = batch(desk, "DETSLURM_TRACK=0 srun python3 train.py\n")
    slurm.wait_state(job, "COMPLETED", timeout=60)
    assert not Path(desk.store.path / "experiments").exists()
