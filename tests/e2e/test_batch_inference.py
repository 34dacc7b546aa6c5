"""Batch inference and shared chunks of work on a cluster, through kills and preemptions."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from detslurm.store.facts import FactLog
from tests.cluster import Cluster
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room
from tests.e2e.test_torch_distributed import LAUNCHED, LIGHT

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]

# Each of the first runs is killed in the interval after its first one; the next is preempted.
INFERENCE = """\
    import json, os, signal, time
    import determined as det
    from detslurm._base.flag import PreemptFlag
    from determined.pytorch import experimental

    info = det.get_cluster_info()
    run, kills = info.trial._trial_run_id, info.trial.hparams["kills"]

    class Copies(experimental.TorchBatchProcessor):
        def __init__(self, context):
            self.context, self.turns, self.flag = context, 0, PreemptFlag.of_this_node()
            self.count = context.wrap_reducer(sum, "records")
            print("rank", context.get_distributed_rank(), "of", context.get_distributed_size())

        def process_batch(self, batch, batch_idx):
            with self.context.upload_path() as path:
                (path / f"{batch_idx}.json").write_text(json.dumps(batch.tolist()))
            self.count.update(len(batch))
            self.turns += 1
            if self.turns == 7 and run <= kills and self.context.get_distributed_rank() == run % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            while self.turns == 2 and run == kills + 1 and not self.flag.preempt:
                print("waits", flush=True)
                time.sleep(0.05)

    experimental.torch_batch_process(Copies, range(10000), batch_size=100)
"""


@pytest.mark.parametrize(
    ("nodes", "slots", "kills"),
    [(1, 1, 0), pytest.param(2, 4, 3, marks=pytest.mark.nightly)],
    ids=["preempted", "kills at every interval"],
)
def test_each_record_is_committed_once(
    desk: Desk, site: Cluster, nodes: int, slots: int, kills: int
) -> None:
    config = desk.project(INFERENCE, f"hyperparameters: {{kills: {kills}}}")
    number = desk.submit(
        config,
        f"resources.slots_per_trial={slots}",
        f"slurm.slots_per_node={slots // nodes}",
        f"entrypoint={LAUNCHED if slots > 1 else 'python3 train.py'}",
        "resources.resource_pool=low",
        LIGHT,
    )
    desk.wait_for_log(number, "waits")
    site.wait_state(make_room(desk), "RUNNING", "COMPLETED")
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["restart"] * kills + ["preempted", "completed"]
    assert [len(run.job.nodes) for run in desk.trial(number).runs] == [nodes] * (kills + 2)
    trial = str(desk.trial_dir(number).id)
    (got,) = desk.run("trial", "download", trial, "--outputs", "-o", "got").stdout.split()
    assert desk.user.cwd is not None
    texts = (path.read_text() for path in (desk.user.cwd / got).rglob("*.json"))
    assert Counter(i for text in texts for i in json.loads(text)) == Counter(range(10000))
    assert desk.metrics(number, "inference")[-1].metrics == {"records": 10000}


CHUNKS = """\
    import os, signal
    from pathlib import Path
    import detslurm as det

    trial = det.get_cluster_info().trial
    with det.core.init() as core:
        for items in core.shards(60, chunk=2):
            print("chunk", items.start, flush=True)
            if trial.hparams["worker"] == 0 and trial._trial_run_id == 1 and items.start > 4:
                os.kill(os.getpid(), signal.SIGKILL)
"""


def test_trials_share_chunks(desk: Desk) -> None:
    """Two trials, of which one is killed and starts again."""
    workers = "hyperparameters: {worker: {type: categorical, vals: [0, 1]}}"
    number = desk.submit(desk.project(CHUNKS, workers), "searcher.name=grid")
    desk.wait_for_state(number, "COMPLETED")
    shards = desk.experiment(number).path / "shards" / "default"
    done = Counter(n for fact in FactLog(shards).facts() for n in fact.get("done", ()))
    assert done == Counter(range(30))
    assert max(desk.trial(number, index).progress for index in (0, 1)) == 1.0
