"""DeepSpeed's examples on the cluster: ZeRO, a search over two engines, a pipeline on two nodes."""

from __future__ import annotations

import pytest

from detslurm.store import trial_metrics
from tests.e2e.conftest import copy_example
from tests.e2e.desk import Desk
from tests.launchers.workers import needs_deepspeed
from tests.light import LIGHT_JOBS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("deepspeed on a cluster"),  # one after the other: they compute most
    needs_deepspeed,
]

# By this seed the samples have ZeRO's stages 1, 1 and 3, and the buffer of the second is for 10^15
# numbers, which no machine has room for.
ZERO = "hyperparameters.overwrite_deepspeed_args.zero_optimization"
SEARCH = (
    f"{ZERO}.reduce_bucket_size={{type: categorical, vals: [100000, {10**15}]}}",
    *("searcher.name=random", "searcher.max_trials=2", "searcher.max_length.batches=8"),
    *("min_validation_period.batches=4", "reproducibility.experiment_seed=310"),
    "resources.slots_per_trial=1",
)
SHORT = ("searcher.max_length.batches=24", "min_validation_period.batches=12")
GAN = ("searcher.max_length.batches=100", "min_validation_period.batches=25")
LIGHT = f"environment.environment_variables={LIGHT_JOBS}"
# tests/pytorch/deepspeed has two replicas of two stages.
TWO_NODES = ("resources.slots_per_trial=2", "slurm.slots_per_node=1")
RUNS = (
    ("deepspeed_gpt", "zero1.yaml", "validation_loss", SHORT),
    ("deepspeed_gan", "const.yaml", "distance", GAN),
    ("deepspeed_pipeline", "distributed.yaml", "validation_loss", (*SHORT, *TWO_NODES)),
)


@pytest.mark.nightly
def test_examples_learn(desk: Desk) -> None:
    """ZeRO-1 on two slots, two stages on two nodes, two engines, and a search over ZeRO's
    stage and the learning rate. The others' jobs of several nodes are only shown."""
    folders = {name: copy_example(desk, name) for name, *_ in RUNS}
    search = desk.submit(folders["deepspeed_gpt"] / "search.yaml", LIGHT, *SEARCH)
    submitted = [
        (desk.submit(folders[name] / config, LIGHT, *options), metric)
        for name, config, metric, options in RUNS
    ]
    for name in ("deepspeed_gpt", "deepspeed_gan"):
        shown = desk.run("submit", str(folders[name] / "distributed.yaml"), "--dry-run")
        assert "--nodes=2" in shown.stdout
    for number, metric in submitted:
        assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
        values = [row.metrics[metric] for row in desk.metrics(number, "validation")]
        assert len(values) > 1 and values[-1] < values[0]
    assert_searched(desk, search)


def assert_searched(desk: Desk, number: int) -> None:
    """Both stages have trained and saved their files; what does not fit in memory is replaced."""
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    rows = desk.view(number).trials
    first, invalid, last = (desk.trial_by_id(number, row.id) for row in rows)
    assert [run.outcome for run in invalid.runs] == ["invalid_hp"] and not invalid.checkpoints
    said = "hyperparameters are invalid: there is not enough memory for training with ZeRO stage 1"
    assert said in desk.log(number, 1)
    for trial, weights in ((first, "mp_rank_00"), (last, "zero_pp_rank_?_mp_rank_00")):
        assert [run.outcome for run in trial.runs] == ["completed"] and trial.latest_checkpoint
        folder = desk.store.path / "checkpoints" / trial.latest_checkpoint.uuid / "model0"
        assert list(folder.glob(f"{weights}_model_states.pt"))
        found = trial_metrics(desk.experiment(number).trial(trial.id), "validation")
        losses = [row.metrics["validation_loss"] for row in found]
        assert [row.steps for row in found] == [4, 8] and losses[1] < losses[0]
    assert desk.view(number).best_trial in (first.id, last.id)
