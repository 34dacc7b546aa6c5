"""Hugging Face's Trainer in trials: scripts that only add a callback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beside import hugging_face
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

__all__ = ["hugging_face"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HELD_AT = 6
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
            info = det.get_cluster_info()
            if state.global_step == info.trial.hparams["hold"] and info.latest_checkpoint is None:
                print("holds", flush=True)
                while not core.preempt.should_preempt():
                    time.sleep(0.01)

    def records(count, seed):
        made = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 4, generator=made)
        return [{"x": row, "labels": row.sum()} for row in x]

    hparams = det.get_cluster_info().trial.hparams
    torch.manual_seed(1)
    ranks, batch, backend = None, 8, None
    if "RANK" in os.environ:
        ranks, batch, backend = det.core.DistributedContext.from_torch_distributed(), 4, "gloo"
    with det.core.init(distributed=ranks) as core:
        args = TrainingArguments(
            output_dir="out", num_train_epochs=2, per_device_train_batch_size=batch,
            learning_rate=hparams["learning_rate"], lr_scheduler_type="constant",
            eval_strategy="epoch", save_strategy="epoch", logging_steps=2, report_to="none",
            use_cpu=True, ddp_backend=backend, disable_tqdm=True,
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
      hold: 0
      two: false
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


def test_it_goes_on_after_a_preemption(desk: Desk, hugging_face: Path) -> None:
    """Metrics, checkpoints and progress are the trial's; two ranks preempted within an epoch end
    with the numbers of an undisturbed training; evaluations of several data sets are one report."""
    config = project(desk, hugging_face, "0.05")
    two = (
        "searcher.metric=eval_a_loss", "hyperparameters.two=true", "resources.slots_per_trial=2",
        "entrypoint=python3 -m determined.launch.torch_distributed train.py",
    )  # fmt: skip
    whole = desk.submit(config, *two)
    low = "resources.resource_pool=low"
    number = desk.submit(config, *two, f"hyperparameters.hold={HELD_AT}", low)
    assert desk.wait_for_state(whole, "COMPLETED", "ERROR") == "COMPLETED", desk.log(whole)
    desk.wait_for_log(number, "holds")
    make_room(desk)
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    assert desk.outcomes(number) == ["preempted", "completed"]
    trial, undisturbed = desk.trial(number), desk.trial(whole)
    assert trial.runs[1].resumed_steps == HELD_AT
    assert [c.steps for c in undisturbed.checkpoints] == [8, 16]
    assert [c.steps for c in trial.checkpoints] == [HELD_AT, 8, 16]
    assert trial.checkpoints[-1].metadata["user_data"] == {"from": "scratch"}
    assert [row.steps for row in desk.metrics(whole, "training")][:8] == [*range(2, 17, 2)]
    assert [steps for steps, _ in validations(desk, whole)] == [8, 16]
    assert {"eval_a_loss", "eval_b_loss"} <= validations(desk, whole)[0][1].keys()
    assert validations(desk, number) == validations(desk, whole)
    assert undisturbed.progress == 1.0
    assert [row.steps for row in desk.metrics(whole, "test")] == [16]


def test_a_search_sets_its_lengths(desk: Desk, hugging_face: Path) -> None:
    """At each operation's end it evaluates, saves and reports; the better trial goes on."""
    searcher = (
        "searcher={name: async_halving, metric: eval_loss, max_length: {batches: 16}, num_rungs: 2,"
        " divisor: 2, max_trials: 2, max_concurrent_trials: 1}"
    )
    config = project(desk, hugging_face, "{type: categorical, vals: [0.0001, 0.05]}")
    number = desk.submit(config, searcher)
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    trials = [desk.trial(number, index) for index in (0, 1)]
    assert sorted(trial.steps for trial in trials) == [8, 16]
    for trial in trials:  # not once more at the end of the epoch
        assert desk.log(number, trials.index(trial)).count("eval_loss") == trial.steps // 8


def test_a_warm_start_counts_from_0(desk: Desk, hugging_face: Path) -> None:
    """Its weights are the script's to load, and the log says so."""
    config = project(desk, hugging_face, "0.05")
    source = desk.submit(config, "searcher.metric=eval_loss")
    assert desk.wait_for_state(source, "COMPLETED", "ERROR") == "COMPLETED", desk.log(source)
    (best,) = desk.trial(source).checkpoints[-1:]
    number = desk.submit(config, f"searcher.source_checkpoint_uuid={best.uuid}")
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    assert f"load the weights of checkpoint {best.uuid}" in desk.log(number)
    assert [steps for steps, _ in validations(desk, number)] == [8, 16]
