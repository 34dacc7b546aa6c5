"""Batch scripts as other people write them: preempted at once, requeued, each one curve."""

from __future__ import annotations

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.distributed.ranks import free_port
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_main_job import make_room
from tests.e2e.test_unmanaged_jobs import TRAIN, assert_one_curve, batch, listed, named

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

STEPS = 12

# Several ranks, whose first reports and saves: at step 4 they wait to be asked to leave.
RANKS = """\
    import os, sys, time
    import detslurm as det

    ranks = getattr(det.core.DistributedContext, sys.argv[2])()
    with det.core.init(distributed=ranks) as core:
        step, value, latest = 0, 1.0, det.get_cluster_info().latest_checkpoint
        if latest:
            with core.checkpoint.restore_path(latest) as path:
                step, value = eval((path / "state").read_text())
        held_at = 0 if latest else 4
        while step < int(sys.argv[1]):
            step, value = step + 1, value * 0.9
            if ranks.rank == 0:
                core.train.report_training_metrics(step, {"loss": value})
            while not (stop := core.preempt.should_preempt()) and step == held_at:
                time.sleep(0.02)
            if stop:
                if ranks.rank == 0:
                    with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                        (path / "state").write_text(repr((step, value)))
                break
"""

TORCHRUN = "torchrun --nproc-per-node=2"
TRAINS = f"ranks.py {STEPS} from_torch_distributed"
# Name: options of sbatch, and the script. The test's nodes know each other as 127.0.0.1 alone,
# which stands for `scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1`.
SCRIPTS = {
    "nodes": (
        "--nodes=2 --ntasks-per-node=1",
        "export MASTER_ADDR=127.0.0.1 MASTER_PORT={port}\n"
        "srun bash -c 'torchrun --nnodes=$SLURM_NNODES --node-rank=$SLURM_NODEID"
        f" --nproc-per-node=1 --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT {TRAINS}'\n",
    ),
    "same-id": (
        "--ntasks=1",
        f"srun {TORCHRUN} --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=7"
        f" --tee 3 --log-dir logs/$SLURM_JOB_ID {TRAINS}\n",
    ),
    "same-id-2": (
        "--ntasks=1",
        f"srun {TORCHRUN} --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=7 {TRAINS}\n",
    ),
    "piped": (
        "--ntasks=1",
        f'CMD="python3 -u train.py {STEPS}"\n'
        'srun bash -c "$CMD" 2>&1 | tee -a "$SLURM_JOB_NAME.txt"\n',
    ),
    "trap": (
        "--ntasks=1 --signal=B:USR1@60",
        "again() { echo requeueing; scontrol requeue $SLURM_JOB_ID; }\ntrap again USR1\n"
        f"srun python3 train.py {STEPS} &\nwait\nwait\n",
    ),
    "strict": (
        "--ntasks=1 --array=1-2",
        'set -euo pipefail\nsteps=$1; shift\nmkdir -p "out/$SLURM_ARRAY_TASK_ID"\n'
        'srun python3 train.py "$steps" --name "$@" --seed "$SLURM_ARRAY_TASK_ID"\n',
    ),
    "tasks": (
        "--ntasks=2 --nodes=1",
        f"srun --kill-on-bad-exit=1 python3 ranks.py {STEPS} from_slurm\n",
    ),
}


def test_other_peoples_scripts_are_preempted_and_go_on(desk: Desk, site: Cluster) -> None:
    """Torchrun on two nodes, one rdzv-id in two jobs at once and with --tee, a command in a pipe,
    a trap that requeues, a strict array with arguments, and the tasks of one srun."""
    desk.write("train.py", TRAIN)
    desk.write("ranks.py", RANKS)
    jobs = {}
    for name, (options, script) in SCRIPTS.items():
        desk.write(f"hold-{name}-4", "")
        words = [str(STEPS), "two words"] if name == "strict" else []
        options = f"--partition=low --job-name={name} {options}"
        lines = script.replace("{port}", str(free_port()))
        jobs[name] = batch(desk, lines, *options.split(), words=words)
    trials = [(name, named(desk, name, steps=4), 0) for name in jobs]
    (array,) = [number for name, number, _ in trials if name == "strict"]
    wait_for(lambda: desk.trial(array, 1).steps >= 4, PATIENCE, "the array's second element")
    desk.user.run("scancel", "--batch", "--signal=USR1", jobs["trap"])
    make_room(desk)
    for name, number, index in [*trials, ("strict", array, 1)]:
        # Slurm may preempt a script that was quick to start again.
        wait_for(
            lambda: set(desk.outcomes(number, index)) == {"preempted", "completed"},  # noqa: B023
            PATIENCE,
            f"{name} to go on",
        )
        assert desk.trial(number, index).runs[1].resumed_steps == 4, name
        assert_one_curve(desk, STEPS, number, index)
    wait_for(lambda: {state for _, state in listed(desk)} == {"COMPLETED"}, PATIENCE, "their ends")
    assert len(listed(desk)) == len(SCRIPTS)
