"""Checkpoints that four ranks on two nodes write together."""

from __future__ import annotations

import os
import signal

import pytest

from tests.cluster.processes import alive
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import pids_of_ranks, programs_above
from tests.e2e.test_failures import let_go

pytestmark = pytest.mark.cluster

TWO_BY_TWO = (
    "resources.slots_per_trial=4",
    "slurm.slots_per_node=2",
    "entrypoint=python3 -m detslurm.launch.torch_distributed train.py",
)

KEEP_ALL = "checkpoint_storage.save_trial_latest=9"

# In its first run the last rank is killed while all save, and those of the other node hear nothing
# of it by themselves; the next run goes on from step 1. Then each rank has its own file, and all a
# common one with equal contents, then one that contradicts.
TRAIN = """\
    import os, pathlib, tempfile, time
    import detslurm as det

    info = det.get_cluster_info()
    dist = det.core.DistributedContext.from_torch_distributed()
    rank, run = dist.rank, info.trial._trial_run_id
    go = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"], "go")
    own = pathlib.Path(tempfile.mkdtemp())
    with det.core.init(distributed=dist) as core:
        assert info.latest_checkpoint or run == 1
        done = info.trial._steps_completed
        while done < 3:
            done += 1
            saving = core.checkpoint.store_path({"steps_completed": done}, shard=True)
            with saving as (path, _):
                (path / f"shard{rank}").write_text(str(done))
                if (done, run) == (2, 1):
                    print("pid", os.getpid(), "of rank", rank, flush=True)
                    time.sleep(0 if rank == 2 else 3600)
        while not go.exists():
            time.sleep(0.05)

        (own / "deep").mkdir()
        (own / "deep" / str(rank)).write_text(str(rank))
        (own / "common").write_text("equal")
        metadata = {"steps_completed": 4, f"rank{rank}": rank}
        uuid = core.checkpoint.upload(own, metadata, shard=True)
        with core.checkpoint.restore_path(uuid) as path:
            found = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
        print("found", *found)
        (own / "common").write_text(f"rank {rank}")
        try:
            core.checkpoint.upload(own, {"steps_completed": 5}, shard=True)
        except RuntimeError as err:
            print("refused", str(err).replace(chr(10), " "))
        with core.checkpoint.store_path({"steps_completed": 6}, shard=True) as (path, _):
            (path / f"shard{rank}").write_text(str(rank))
"""


def test_four_ranks_save_together(desk: Desk) -> None:
    """kill -9 of a rank while all save: the half checkpoint is never listed nor resumed from, the
    next run removes it, and no process of the old one remains. Equal files are stored once,
    contradictions are refused by name, shards add up."""
    number = desk.submit(desk.project(TRAIN), *TWO_BY_TWO, KEEP_ALL)
    ranks = pids_of_ranks(desk, number, 1)
    old = [*ranks.values(), *programs_above(ranks[3]).values()]
    os.kill(ranks[3], signal.SIGKILL)
    wait_for(lambda: desk.outcomes(number) == ["restart", None], PATIENCE, "the next run")
    wait_for(lambda: not any(map(alive, old)), PATIENCE, "the first run to be gone")
    let_go(desk, number)
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    trial, log = desk.trial(number), desk.log(number)
    assert "was killed by SIGKILL" in (trial.runs[0].reason or "")
    assert len({run.job.ref for run in trial.runs}) == 1
    saved = [(checkpoint.run, checkpoint.steps) for checkpoint in trial.checkpoints]
    assert saved == [(1, 1), (2, 2), (2, 3), (2, 4), (2, 6)]
    assert trial.runs[1].resumed_from == trial.checkpoints[0].uuid
    storage = desk.store.path / "checkpoints"
    assert {p.name for p in storage.iterdir()} == {c.uuid for c in trial.checkpoints}

    files = "common deep/0 deep/1 deep/2 deep/3 metadata.json"
    assert log.count(f"found {files}") == 4
    assert log.count("refused refusing to upload with files conflicts") == 4
    assert "common uploaded by ranks [0, 1, 2, 3]" in log
    own, shards = trial.checkpoints[-2:]
    assert set(own.metadata) == {"steps_completed", "rank0", "rank1", "rank2", "rank3"}
    assert {f"shard{rank}" for rank in range(4)} < set(shards.resources)
