"""A search over a transformer on text: trials rest, are promoted, preempted, and lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm import storage
from detslurm.store import TrialView, trial_metrics
from tests.cluster.waiting import wait_for
from tests.e2e.conftest import copy_example
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_main_job import make_room
from tests.e2e.test_pytorch import HARNESS
from tests.e2e.test_pytorch_examples import submit, uninterrupted
from tests.e2e.test_search import assert_sound, hold_back, let_go
from tests.pytorch.managed import Managed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

METRIC = "bits_per_byte"
ALONE = {"name": "single", "metric": METRIC, "max_length": {"batches": 16}}
SMALL = [
    *("searcher.max_trials=4", "searcher.max_length.batches=16", "searcher.max_rungs=3"),
    *("searcher.divisor=2", "searcher.mode=aggressive", "searcher.max_concurrent_trials=1"),
    *("hyperparameters.width=32", "hyperparameters.layers=1"),
    *("reproducibility.experiment_seed=4", "resources.resource_pool=low"),
]
KEEP_ALL = "checkpoint_storage.save_trial_latest=99"

# Between the first rung and the second, in the middle of an aggregation, the trial can be held.
HELD = """

import os, pathlib, time

train = TextTrial.train_batch


def held(self, batch, epoch_idx, batch_idx):
    gate = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "wait"
    preempt = self.context._core.preempt
    while batch_idx == 6 and gate.exists() and not preempt.should_preempt(auto_ack=False):
        print("waiting", flush=True)
        time.sleep(0.1)
    return train(self, batch, epoch_idx, batch_idx)


TextTrial.train_batch = held
"""

PBT = """\
searcher={name: pbt, metric: accuracy, smaller_is_better: false, population_size: 2, num_rounds: 2,
length_per_round: {epochs: 1}, replace_function: {truncate_fraction: 0.5},
explore_function: {resample_probability: 1.0}}"""

# A trial tells the learning rate that its first batch has.
TELLS = """

begin = DigitsTrial.train_batch


def telling(self, batch, epoch_idx, batch_idx):
    if not hasattr(self, "told"):
        self.told = print("batch", batch_idx, "rate", self.optimizer.param_groups[0]["lr"])
    return begin(self, batch, epoch_idx, batch_idx)


DigitsTrial.train_batch = telling
"""

# What a user does with the best: load it, and look how good it is.
EVALUATE = """\
import sys, torch
from detslurm import pytorch

trial = pytorch.load_trial_from_checkpoint_path(sys.argv[1])
trial.model.eval()
loader = trial.build_validation_data_loader().get_data_loader()
with torch.no_grad():
    found = [trial.evaluate_batch(b, i)["bits_per_byte"].item() for i, b in enumerate(loader)]
print(sum(found) / len(found))
"""


@pytest.mark.nightly  # tests/pytorch/test_searches.py has its promotions, test_text what it learns
@pytest.mark.slow
def test_adaptive_asha_over_the_transformer(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rungs are as planned. A trial that is paused, promoted, preempted and promoted again ends
    bit by bit like one that nobody interrupted; another starts warm from its best checkpoint."""
    number = submit(desk, "pytorch_text", "adaptive.yaml", "--paused", *SMALL, KEEP_ALL, length=16)
    hold_back(desk, number)
    model = desk.experiment(number).path / "code" / "model_def.py"
    model.write_text(model.read_text() + HELD)
    desk.run("experiment", "activate", str(number))
    # By this seed the first trial leads on every rung, and one worker has all in turn.
    desk.wait_for_log(number, "waiting")
    make_room(desk)
    wait_for(lambda: "preempted" in desk.outcomes(number), PATIENCE, "the promoted trial to leave")
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED", timeout=600)

    (bracket,) = assert_sound(desk, number).brackets
    assert [(rung.units, len(rung.results)) for rung in bracket.rungs] == [(4, 4), (8, 2), (16, 1)]
    trial = desk.trial(number)
    assert desk.outcomes(number) == ["out_of_ops", "preempted", "out_of_ops", "completed"]
    assert [run.resumed_steps for run in trial.runs] == [0, 4, 7, 8]
    curve = [(row.steps, row.metrics[METRIC]) for row in desk.metrics(number, "validation")]
    alone = Managed(tmp_path, monkeypatch, {"hyperparameters": {}, "searcher": ALONE})
    assert curve == uninterrupted(trial, "pytorch_text", 16, METRIC, alone)

    view = desk.view(number)
    assert view.best_trial == trial.id and trial.best_validation is not None
    best, steps = trial.best_validation.value, trial.best_validation.steps
    checkpoint = next(found for found in trial.checkpoints if found.steps == steps)
    kept = storage.from_config(desk.experiment(number).config()["checkpoint_storage"])
    script = desk.write("evaluate.py", EVALUATE)
    said = desk.user.run("python3", str(script), str(kept.direct(checkpoint.uuid))).stdout
    assert float(said) == pytest.approx(best, rel=1e-6)
    assert_warm(desk, warm_start(desk, trial), checkpoint.uuid, best)


def warm_start(desk: Desk, source: TrialView) -> int:
    """Submit a trial of the same shape that begins with another one's best weights."""
    shape = [f"hyperparameters.{name}={value}" for name, value in (source.hparams or {}).items()]
    warm = (f"entrypoint={HARNESS}TextTrial", "perform_initial_validation=true", *shape)
    searcher = f"{{name: single, metric: {METRIC}, max_length: {{batches: 2}}"
    overrides = (*warm, f"searcher={searcher}, source_trial_id: {source.id}}}")
    return submit(desk, "pytorch_text", "adaptive.yaml", *overrides)


def assert_warm(desk: Desk, number: int, uuid: str, metric: float | None) -> None:
    """With the weights of another trial, to the last bit, and counters that begin at 0."""
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    (run,) = desk.trial(number).runs
    assert (run.resumed_from, run.resumed_steps) == (uuid, 0)
    rows = desk.metrics(number, "validation")
    assert [row.steps for row in rows] == [0, 2]
    assert rows[0].metrics[METRIC] == metric
    assert desk.trial(number).steps == 2


@pytest.mark.nightly
def test_population_based_training_of_a_trial_class(desk: Desk) -> None:
    """A copy goes on from the best's checkpoint, where that one was, with a rate of its own."""
    model = copy_example(desk, "pytorch_digits") / "model_def.py"
    model.write_text(model.read_text() + TELLS)
    shape = ("hyperparameters.channels=4", "hyperparameters.dropout=0")
    number = submit(desk, "pytorch_digits", "adaptive.yaml", *shape, PBT.replace("\n", " "))
    desk.wait_for_state(number, "COMPLETED")
    state = assert_sound(desk, number)
    source = state.trials[2].source
    assert state.created == 3 and source is not None
    original, copy = desk.trial(number, source), desk.trial(number, 2)
    assert copy.hparams is not None
    first = [trial_metrics(desk.trial_dir(number, i), "validation")[0] for i in range(2)]
    assert max(first, key=lambda row: row.metrics["accuracy"]) is first[source]
    (run,) = copy.runs
    assert run.resumed_from in {c.uuid for c in original.checkpoints if c.steps == 47}
    rows = trial_metrics(desk.trial_dir(number, 2), "validation")
    assert [row.steps for row in rows] == [94]
    rate = float(desk.log(number, 2).split("batch 47 rate ", 1)[1].split()[0])
    assert rate == pytest.approx(0.9 * copy.hparams["learning_rate"])
    assert copy.hparams != original.hparams
