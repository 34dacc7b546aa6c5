"""Checkpoints that four ranks on two nodes write together."""

from __future__ import annotations

import pytest

from tests.e2e.desk import Desk

pytestmark = pytest.mark.cluster

TWO_BY_TWO = (
    "resources.slots_per_trial=4",
    "slurm.slots_per_node=2",
    "entrypoint=python3 -m detslurm.launch.torch_distributed train.py",
)

KEEP_ALL = "checkpoint_storage.save_trial_latest=9"

HEAD = """\
    import os, pathlib, signal, tempfile
    import detslurm as det

    info = det.get_cluster_info()
    dist = det.core.DistributedContext.from_torch_distributed()
    rank = dist.rank
    own = pathlib.Path(tempfile.mkdtemp())
    steps = {"steps_completed": 1}
    """

# Each rank its own file, a common one with equal contents, then one that contradicts.
CONFLICTS = """
    (own / "deep").mkdir()
    (own / "deep" / str(rank)).write_text(str(rank))
    (own / "common").write_text("equal")
    with det.core.init(distributed=dist) as core:
        uuid = core.checkpoint.upload(own, {**steps, f"rank{rank}": rank}, shard=True)
        with core.checkpoint.restore_path(uuid) as path:
            found = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())
        print("found", *found)
        (own / "common").write_text(f"rank {rank}")
        try:
            core.checkpoint.upload(own, {"steps_completed": 2}, shard=True)
        except RuntimeError as err:
            print("refused", str(err).replace(chr(10), " "))
        with core.checkpoint.store_path({"steps_completed": 3}, shard=True) as (path, _):
            (path / f"shard{rank}").write_text(str(rank))
"""

# In its first run the last rank dies while all write; the next run goes on from step 1.
KILLED = """
    with det.core.init(distributed=dist) as core:
        done = info.trial._steps_completed
        while done < 3:
            done += 1
            saving = core.checkpoint.store_path({"steps_completed": done}, shard=True)
            with saving as (path, uuid):
                (path / f"shard{rank}").write_text(str(done))
                if (done, rank, info.trial._trial_run_id) == (2, 3, 1):
                    os.kill(os.getpid(), signal.SIGKILL)
        assert info.latest_checkpoint or info.trial._trial_run_id == 1
"""


def submit(desk: Desk, body: str) -> int:
    """Run four ranks on two nodes to the end; the experiment's id."""
    number = desk.submit(desk.project(HEAD + body), *TWO_BY_TWO, KEEP_ALL)
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    return number


def test_overlapping_files_of_four_ranks(desk: Desk) -> None:
    """Equal files are stored once, contradictions are refused by name, shards add up."""
    number = submit(desk, CONFLICTS)
    log = desk.log(number)
    files = "common deep/0 deep/1 deep/2 deep/3 metadata.json"
    assert log.count(f"found {files}") == 4
    assert log.count("refused refusing to upload with files conflicts") == 4
    assert "common uploaded by ranks [0, 1, 2, 3]" in log
    first, second = desk.trial(number).checkpoints
    assert (first.steps, second.steps) == (1, 3)
    assert set(first.metadata) == {"steps_completed", "rank0", "rank1", "rank2", "rank3"}
    assert {f"shard{rank}" for rank in range(4)} < set(second.resources)


def test_a_rank_killed_while_all_save(desk: Desk) -> None:
    """The half checkpoint is never listed nor resumed from, and the next run removes it."""
    number = submit(desk, KILLED)
    trial = desk.trial(number)
    assert [(c.run, c.steps) for c in trial.checkpoints] == [(1, 1), (2, 2), (2, 3)]
    assert trial.runs[1].resumed_from == trial.checkpoints[0].uuid
    storage = desk.store.path / "checkpoints"
    assert {p.name for p in storage.iterdir()} == {c.uuid for c in trial.checkpoints}
