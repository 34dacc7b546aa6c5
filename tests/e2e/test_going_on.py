"""Experiments that go on with others: by more steps, after a cancellation, after a failure."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from detslurm.store import fold_facts
from tests.e2e.desk import Desk
from tests.e2e.exact_train import Model
from tests.e2e.test_pytorch import HARNESS
from tests.e2e.test_pytorch import project as pytorch_project
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# A training of which every number depends on all before. It goes on with what it is given, and
# counts on; `data` says where the first run of each experiment waits or fails.
SCRIPT = """\
import json, sys, time
sys.path.insert(0, ".")
import detslurm as det
from exact_train import Model

info = det.get_cluster_info()
target = info.trial._config["searcher"]["max_length"]["batches"]
rate = info.trial.hparams.get("rate", 1)
model = Model(info.trial.trial_seed)
with det.core.init() as core:
    if info.latest_checkpoint:
        with core.checkpoint.restore_path(info.latest_checkpoint) as path:
            model.load(path / "model.json")
    assert model.step == info.trial._steps_completed
    print("begins after", model.step, "of", info.trial.continues, flush=True)

    def save():
        with core.checkpoint.store_path({"steps_completed": model.step}) as (path, _):
            model.save(path / "model.json")

    while model.step < target:
        loss = model.train_batch()["loss"] * rate
        core.train.report_training_metrics(model.step, {"loss": loss})
        if model.step % 50 == 0 or model.step == target:
            core.train.report_validation_metrics(model.step, {"loss": loss, "w": model.weight})
            save()
        if model.step == info.user_data.get("fails_at"):
            raise RuntimeError("this was to fail")
        while model.step == info.user_data.get("waits_at") and not core.preempt.should_preempt():
            time.sleep(0.01)
        if core.preempt.should_preempt():
            save()
            break
"""

CONFIG = """
searcher: {name: single, metric: loss, max_length: {batches: 100}}
reproducibility: {experiment_seed: 3}
max_restarts: 0
hyperparameters: {rate: 1}
data: {secrets: {token: hush-hush}}
"""


@pytest.fixture
def config(desk: Desk) -> Path:
    """The training, with its configuration."""
    found = desk.project(SCRIPT, "")
    text = found.read_text().replace("searcher: {name: single, metric: loss, max_length: 10}\n", "")
    found.write_text(text + CONFIG)
    (found.parent / "exact_train.py").write_text(
        Path(__file__).with_name("exact_train.py").read_text()
    )
    return found


def go_on(desk: Desk, number: int, *words: str) -> int:
    """`experiment continue`, to its end."""
    done = desk.run("experiment", "continue", str(number), "--json", *words)
    made = int(unwrap(done.stdout)["experiment_id"])
    assert desk.wait_for_state(made, "COMPLETED", "ERROR") == "COMPLETED", desk.log(made)
    return made


def curve(desk: Desk, number: int) -> list[tuple[str, int, dict[str, Any]]]:
    return [(row.group, row.steps, row.metrics) for row in desk.metrics(number)]


def final(desk: Desk, number: int) -> Model:
    """The model of the latest checkpoint."""
    latest = desk.trial(number).latest_checkpoint
    assert latest is not None
    model = Model(0)
    model.load(desk.store.path / "checkpoints" / latest.uuid / "model.json")
    return model


@pytest.mark.slow
def test_a_continued_training_ends_like_one_in_one_go(desk: Desk, config: Path) -> None:
    """Completed, canceled or failed before: 200 steps in the end, the same to the last bit, one
    curve; the experiment that was continued stays as it was."""
    whole = desk.submit(config, "searcher.max_length.batches=200")
    short = desk.submit(config)
    failing = desk.submit(config, "data.fails_at=70", "searcher.max_length.batches=200")
    waiting = desk.submit(config, "data.waits_at=120", "searcher.max_length.batches=200")
    # What ran is what goes on, whatever became of the directory.
    (config.parent / "train.py").write_text("raise SystemExit('another script')")
    desk.wait_for_steps(waiting, 120)
    desk.run("experiment", "cancel", str(waiting))
    for number, state in ((waiting, "CANCELED"), (short, "COMPLETED"), (failing, "ERROR")):
        assert desk.wait_for_state(number, "COMPLETED", "ERROR", "CANCELED") == state
    before = curve(desk, short)

    more = go_on(desk, short, "--config", "searcher.max_length.batches=200")
    again = go_on(desk, failing, "--config", "data.fails_at=null")
    on = go_on(desk, waiting, "--config", "data.waits_at=null")
    assert desk.wait_for_state(whole, "COMPLETED", "ERROR") == "COMPLETED", desk.log(whole)

    expected = curve(desk, whole)
    assert len([steps for group, steps, _ in expected if group == "training"]) == 200
    model = final(desk, whole)
    for number, parent, begun in ((more, short, 100), (again, failing, 50), (on, waiting, 120)):
        trial = desk.trial(number)
        assert curve(desk, number) == expected
        assert vars(final(desk, number)).keys() == vars(model).keys()
        assert final(desk, number).weight == model.weight
        assert final(desk, number).numbers.getstate() == model.numbers.getstate()
        assert trial.runs[0].resumed_steps == begun and trial.run_count == 1
        assert trial.continues == desk.trial(parent).id
        assert desk.view(number).parent == parent
        assert fold_facts(desk.experiment(number)).created.origin == "continue"
    assert curve(desk, short) == before and desk.view(short).state == "COMPLETED"
    assert desk.experiment(more).config()["data"]["secrets"] == {"token": "hush-hush"}

    # A third generation, whose parent's checkpoints are its own beginning.
    third = go_on(desk, more, "--config", "searcher.max_length.batches=210")
    assert curve(desk, third)[: len(expected)] == expected
    # The whole curve is its own: the parent's need not be there any more.
    shutil.rmtree(desk.experiment(short).path / "trials")
    assert [s for g, s, _ in curve(desk, more) if g == "training"] == [*range(1, 201)]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_pytorch_trial_goes_on(desk: Desk) -> None:
    """Its counters, its scheduler and its random numbers go on as if nothing had been between."""
    config = pytorch_project(desk, "torch", f"{HARNESS}Trial", waits=False)
    config.write_text(config.read_text().replace("slots_per_trial: 2", "slots_per_trial: 1"))
    whole = desk.submit(config)
    short = desk.submit(config, "searcher.max_length.batches=17")
    assert desk.wait_for_state(short, "COMPLETED", "ERROR") == "COMPLETED", desk.log(short)
    more = go_on(desk, short, "--config", "searcher.max_length.batches=40")
    assert desk.wait_for_state(whole, "COMPLETED", "ERROR") == "COMPLETED", desk.log(whole)

    losses = [
        {row.steps: row.metrics["loss"] for row in desk.metrics(n, "training")}
        for n in (whole, more)
    ]
    shared = losses[0].keys() & losses[1].keys()
    assert 40 in shared and {s: losses[0][s] for s in shared} == {s: losses[1][s] for s in shared}
    assert weights(desk, whole).keys() == weights(desk, more).keys()
    for name, value in weights(desk, whole).items():
        assert torch.equal(value, weights(desk, more)[name]), name

    same = go_on(desk, more, "--config", "slurm.time=2")
    assert desk.wait_for_state(same, "COMPLETED", "ERROR") == "COMPLETED", desk.log(same)
    assert "nothing is left to train: the length is 40 batches, and 40 are" in desk.log(same)
    assert weights(desk, same).keys() == weights(desk, more).keys()


def weights(desk: Desk, number: int) -> dict[str, torch.Tensor]:
    latest = desk.trial(number).latest_checkpoint
    assert latest is not None and latest.steps == 40
    path = desk.store.path / "checkpoints" / latest.uuid / "state_dict.pth"
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["models_state_dict"][0]
    return found


@pytest.mark.nightly
def test_a_grid_goes_on_and_one_trial_of_a_search(desk: Desk, config: Path) -> None:
    """Each trial of a grid from its own checkpoint; of a search the trial that was chosen."""
    grid = ("searcher={name: grid, metric: loss, max_length: {batches: 60}}",)
    space = "hyperparameters={rate: {type: categorical, vals: [1, 2]}}"
    parent = desk.submit(config, *grid, space)
    asha = "searcher={name: async_halving, metric: loss, max_length: {batches: 60}, num_rungs: 1, "
    search = desk.submit(config, asha + "max_trials: 2}", space)
    assert desk.wait_for_state(parent, "COMPLETED", "ERROR") == "COMPLETED", desk.log(parent)
    more = go_on(desk, parent, "--config", "searcher.max_length.batches=90")
    for index in range(2):
        trial, old = desk.trial(more, index), desk.trial(parent, index)
        assert trial.hparams == old.hparams and trial.seed == old.seed
        assert (trial.runs[0].resumed_steps, trial.steps) == (60, 90)

    refused = desk.run(
        *("experiment", "continue", str(parent)),
        *("--config", "hyperparameters.rate.vals=[1, 3]"),
        check=False,
    )
    assert refused.returncode == 1 and "--trial" in refused.stderr
    assert desk.wait_for_state(search, "COMPLETED", "ERROR") == "COMPLETED", desk.log(search)
    second = desk.view(search).trials[1]
    refused = desk.run("experiment", "continue", str(search), "--config", "max_restarts=1",
                       check=False)  # fmt: skip
    assert refused.returncode == 1 and "--trial" in refused.stderr
    alone = go_on(desk, search, "--trial", str(second.id),
                  "--config", "searcher.max_length.batches=80")  # fmt: skip
    trial = desk.trial(alone)
    assert trial.hparams == second.hparams and trial.continues == second.id
    assert (trial.runs[0].resumed_steps, trial.steps) == (60, 80)

    # The whole search goes to another store: its rungs, its curves and its best checkpoint.
    assert desk.user.cwd is not None
    elsewhere = {"DETSLURM_ROOT": str(desk.user.cwd / "elsewhere")}
    desk.run("experiment", "bundle", str(search), "-o", "search.tar.gz")
    done = unwrap(desk.run("import", "search.tar.gz", "--json", env=elsewhere).stdout)
    there = unwrap(desk.run("e", "describe", "1", "--json", env=elsewhere).stdout)
    here = unwrap(desk.run("e", "describe", str(search), "--json").stdout)
    assert len(done["checkpoints"]) == 1
    for name in ("state", "best_value", "trial_states", "started", "ended"):
        assert there[name] == here[name], name
    assert there["search"]["brackets"] and len(there["trials"]) == 2
    assert curve(Desk(replace(desk.user, env={**desk.user.env, **elsewhere})), 1) == curve(
        desk, search
    )
