"""Hugging Face's Trainer in trials: scripts that only add a callback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.beside import hugging_face
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room
from tests.envelope import unwrap

__all__ = ["hugging_face"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCRIPT = """\
    import os
    import time
    import torch
    from torch import nn
    from transformers import Trainer, TrainerCallback, TrainingArguments
    import determined as det
    from determined.transformers import DetCallback

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x, labels):
            out = self.layer(x).squeeze(-1)
            return {"loss": nn.functional.mse_loss(out, labels), "logits": out}

    class Hold(TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            self.hold_at(hparams["hold"], state)

        def on_prediction_step(self, args, state, control, **more):
            self.hold_at(hparams["hold_evaluation"], state)

        def hold_at(self, step, state):
            if state.global_step == step:
                print(f"holds in run {run}", flush=True)
                while not core.preempt.should_preempt():
                    time.sleep(0.05)

    def records(count, seed):
        made = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 4, generator=made)
        return [{"x": row, "labels": row.sum()} for row in x]

    trial = det.get_cluster_info().trial
    hparams, run = trial.hparams, trial._trial_run_id
    for name in ("hold", "hold_evaluation", "evaluate"):  # of each run, and of all after the last
        hparams[name] = hparams[name][:run][-1]
    torch.manual_seed(1)
    ranks, batch, backend = None, 8, None
    if "RANK" in os.environ:
        ranks, batch, backend = det.core.DistributedContext.from_torch_distributed(), 4, "gloo"
    with det.core.init(distributed=ranks) as core:
        args = TrainingArguments(
            output_dir="out", num_train_epochs=hparams["epochs"], per_device_train_batch_size=batch,
            learning_rate=hparams["learning_rate"], lr_scheduler_type="constant",
            eval_strategy=hparams["evaluate"], eval_steps=hparams["evaluate_after"],
            save_strategy=hparams["save"], logging_steps=2, report_to="none",
            use_cpu=True, ddp_backend=backend, disable_tqdm=True,
            metric_for_best_model="a_loss" if hparams["two"] else "loss", greater_is_better=True,
        )
        evaluated = {"a": records(16, 2), "b": records(16, 3)} if hparams["two"] else records(16, 2)
        trainer = Trainer(Net(), args, train_dataset=records(64, 1), eval_dataset=evaluated)
        trainer.add_callback(Hold())
        trainer.add_callback(DetCallback(core, args, user_data={"from": "scratch"}))
        trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
        if not core.preempt.should_preempt():
            trainer.evaluate(records(8, 4), metric_key_prefix="test")
    """
CONFIG = """\
    hyperparameters:
      learning_rate: {value}
      hold: [0]
      hold_evaluation: [99]
      evaluate: [epoch]
      evaluate_after: 4
      save: epoch
      two: false
      epochs: 2
    environment:
      environment_variables: [PYTHONPATH={path}, OMP_NUM_THREADS=1]
    max_restarts: 0
    """


def project(desk: Desk, path: Path, value: str) -> Path:
    return desk.project(SCRIPT, CONFIG.replace("{value}", value).replace("{path}", str(path)))


def validations(desk: Desk, number: int) -> list[tuple[int, dict[str, object]]]:
    """What was evaluated, without what a clock says."""
    clocks = ("runtime", "per_second")
    return [
        (row.steps, {k: v for k, v in row.metrics.items() if not k.endswith(clocks)})
        for row in desk.metrics(number, "validation")
    ]


def best_metric(desk: Desk, number: int) -> object:
    """That of the Trainer's state in the last checkpoint."""
    last = desk.trial(number).checkpoints[-1]
    path = desk.store.path / "checkpoints" / last.uuid / "trainer_state.json"
    return json.loads(path.read_text())["best_metric"]


TWO_RANKS = (
    "resources.slots_per_trial=2",
    "entrypoint=python3 -m determined.launch.torch_distributed train.py",
)


@pytest.mark.parametrize(
    "ranks", [(), pytest.param(TWO_RANKS, marks=pytest.mark.nightly)], ids=["one", "two"]
)
def test_it_goes_on_after_a_preemption(
    desk: Desk, hugging_face: Path, ranks: tuple[str, ...]
) -> None:
    """Metrics, checkpoints and progress are the trial's; ranks preempted in the last step of an
    epoch end with the numbers of an undisturbed training; evaluations of several data sets are one
    report. A training that saves only the best goes on, too, when it leaves in an evaluation within
    an epoch."""
    config = project(desk, hugging_face, "0.05")
    two = ("searcher.metric=eval_a_loss", "hyperparameters.two=true", *ranks)
    whole = desk.submit(config, *two)
    low = "resources.resource_pool=low"
    number = desk.submit(  # in that last step an evaluation is due, too
        config, *two, "hyperparameters.hold=[8, 0]", "hyperparameters.evaluate=[steps, epoch]",
        "hyperparameters.evaluate_after=8", low,
    )  # fmt: skip
    best = desk.submit(
        config, "searcher.metric=eval_loss", "hyperparameters.evaluate=[steps]",
        "hyperparameters.save=best", "hyperparameters.hold_evaluation=[12, 99]", low,
    )  # fmt: skip
    assert desk.wait_for_state(whole, "COMPLETED", "ERROR") == "COMPLETED", desk.log(whole)
    for held in (number, best):
        desk.wait_for_log(held, "holds in run 1")
    make_room(desk)
    for held in (number, best):
        assert desk.wait_for_state(held, "COMPLETED", "ERROR") == "COMPLETED", desk.log(held)
        assert desk.outcomes(held) == ["preempted", "completed"]
    trial, undisturbed = desk.trial(number), desk.trial(whole)
    assert trial.runs[1].resumed_steps == 8
    assert desk.trial(best).runs[1].resumed_steps == 12
    assert [c.steps for c in desk.trial(best).checkpoints] == [4, 12]
    assert [steps for steps, _ in validations(desk, best)] == [4, 8, 12, 16]
    assert [c.steps for c in undisturbed.checkpoints] == [8, 16]
    assert [c.steps for c in trial.checkpoints] == [8, 8, 16]
    assert trial.checkpoints[-1].metadata["user_data"] == {"from": "scratch"}
    assert [row.steps for row in desk.metrics(whole, "training")][:8] == [*range(2, 17, 2)]
    assert [steps for steps, _ in validations(desk, whole)] == [8, 16]
    assert {"eval_a_loss", "eval_b_loss"} <= validations(desk, whole)[0][1].keys()
    assert validations(desk, number) == validations(desk, whole)
    assert best_metric(desk, number) == best_metric(desk, whole)
    assert undisturbed.progress == 1.0
    assert [row.steps for row in desk.metrics(whole, "test")] == [16]


@pytest.mark.nightly
def test_a_search_sets_its_lengths(desk: Desk, hugging_face: Path) -> None:
    """At each operation's end it evaluates, saves and reports; the better trial goes on. This holds
    where only the best would be saved, too."""
    searcher = (
        "searcher={name: async_halving, metric: eval_loss, max_length: {batches: 16}, num_rungs: 2,"
        " divisor: 2, max_trials: 2, max_concurrent_trials: 1}"
    )
    config = project(desk, hugging_face, "{type: categorical, vals: [0.0001, 0.05]}")
    only_best = ("hyperparameters.evaluate=[steps]", "hyperparameters.save=best")
    number = desk.submit(config, searcher, *only_best)
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    trials = [desk.trial(number, index) for index in (0, 1)]
    assert sorted(trial.steps for trial in trials) == [8, 16]
    for trial in trials:  # not once more at the end of the epoch
        assert desk.log(number, trials.index(trial)).count("'eval_loss'") == trial.steps // 4
        assert {8, trial.steps} <= {c.steps for c in trial.checkpoints}


@pytest.mark.nightly
def test_other_checkpoints_than_its_own(desk: Desk, hugging_face: Path) -> None:
    """A warm start counts from 0, and its weights are the script's to load; a continuation with
    another learning rate has it, with what the optimizer has learnt."""
    config = project(desk, hugging_face, "0.05")
    source = desk.submit(config, "searcher.metric=eval_loss")
    assert desk.wait_for_state(source, "COMPLETED", "ERROR") == "COMPLETED", desk.log(source)
    (best,) = desk.trial(source).checkpoints[-1:]
    number = desk.submit(config, f"searcher.source_checkpoint_uuid={best.uuid}")
    changed = ("--config=hyperparameters.learning_rate=0.01", "--config=hyperparameters.epochs=3")
    done = desk.run("experiment", "continue", str(source), *changed, "--json")
    continued = int(unwrap(done.stdout)["experiment_id"])
    for one in (number, continued):
        assert desk.wait_for_state(one, "COMPLETED", "ERROR") == "COMPLETED", desk.log(one)
    assert f"load the weights of checkpoint {best.uuid}" in desk.log(number)
    assert [steps for steps, _ in validations(desk, number)] == [8, 16]
    rates = {r.steps: r.metrics.get("learning_rate") for r in desk.metrics(continued, "training")}
    assert rates[16] == 0.05 and [rates[step] for step in range(18, 25, 2)] == [0.01] * 4
