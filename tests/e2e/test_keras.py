"""Keras in trials: scripts that only add a callback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.beside import keras
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

__all__ = ["keras"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

BATCHES = 8
"""Of an epoch."""

SCRIPT = """\
    import time
    import numpy as np
    import keras
    import determined as det
    from determined.keras import DeterminedCallback

    info = det.get_cluster_info()
    hparams = info.trial.hparams

    class Hold(keras.callbacks.Callback):
        batches = 0

        def hold(self):
            if self.batches == hparams["hold"] and info.latest_checkpoint is None:
                print("holds", flush=True)
                while not core.preempt.should_preempt():
                    time.sleep(0.01)

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1
            if self.batches % 8:
                self.hold()

        def on_epoch_end(self, epoch, logs=None):
            self.hold()

    def records(count, seed):
        x = np.random.default_rng(seed).normal(size=(count, 4)).astype("float32")
        return x, x.sum(1)

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(hparams["learning_rate"]), loss="mse")
    with det.core.init() as core:
        callback = DeterminedCallback(
            core, checkpoint=info.latest_checkpoint, continue_id=info.trial.trial_id,
            train_metrics_report_period=hparams["period"],
        )
        model.fit(
            *records(64, 1), batch_size=8, epochs=4, shuffle=False, verbose=2,
            validation_data=records(16, 2), callbacks=[Hold(), callback],
        )
    """
CONFIG = """\
    hyperparameters:
      learning_rate: {value}
      hold: 0
      period: epoch
    environment:
      environment_variables: [PYTHONPATH={path}, OMP_NUM_THREADS=1, KERAS_BACKEND=torch]
    max_restarts: 0
    """


def project(desk: Desk, path: Path, value: str) -> Path:
    return desk.project(SCRIPT, CONFIG.replace("{value}", value).replace("{path}", str(path)))


def validations(desk: Desk, number: int) -> list[tuple[int, float]]:
    return [
        (row.steps, float(row.metrics["val_loss"])) for row in desk.metrics(number, "validation")
    ]


def completed(desk: Desk, number: int) -> None:
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)


def test_it_goes_on_after_a_preemption(desk: Desk, keras: Path) -> None:
    """After an epoch with the numbers of an undisturbed training; an epoch that was left begins
    anew with what was trained. A warm start takes the weights, and counts from 0."""
    config = project(desk, keras, "0.05")
    plain = "searcher.metric=val_loss"
    whole = desk.submit(config, plain, "hyperparameters.period=4")
    low = "resources.resource_pool=low"
    after, within = (
        desk.submit(config, plain, low, f"hyperparameters.hold={held}") for held in (16, 13)
    )
    completed(desk, whole)
    for number in (after, within):
        desk.wait_for_log(number, "holds")
    make_room(desk)
    for number in (after, within):
        completed(desk, number)
        assert desk.outcomes(number) == ["preempted", "completed"]
    trial = desk.trial(whole)
    assert [c.steps for c in trial.checkpoints] == [8, 16, 24, 32] and trial.progress == 1.0
    assert [row.steps for row in desk.metrics(whole, "training")] == [*range(4, 33, 4)]
    assert [steps for steps, _ in validations(desk, whole)] == [8, 16, 24, 32]
    assert desk.trial(after).runs[1].resumed_steps == 16
    assert validations(desk, after) == validations(desk, whole)
    assert desk.trial(within).runs[1].resumed_steps == 13
    assert [steps for steps, _ in validations(desk, within)] == [8, 21, 29, 37]
    assert [c.steps for c in desk.trial(within).checkpoints] == [8, 13, 21, 29, 37]

    last = trial.checkpoints[-1].uuid
    warm = desk.submit(config, plain, f"searcher.source_checkpoint_uuid={last}")
    completed(desk, warm)
    assert [steps for steps, _ in validations(desk, warm)] == [8, 16, 24, 32]
    assert validations(desk, warm)[0][1] < validations(desk, whole)[2][1], "with other weights"


def test_a_search_sets_its_lengths(desk: Desk, keras: Path) -> None:
    """Each operation ends with a validation and a checkpoint; the better trial goes on."""
    searcher = (
        "searcher={name: async_halving, metric: val_loss, max_length: {epochs: 4}, num_rungs: 2,"
        " divisor: 2, max_trials: 2, max_concurrent_trials: 1}"
    )
    config = project(desk, keras, "{type: categorical, vals: [0.0001, 0.05]}")
    number = desk.submit(config, searcher)
    stopping = "{name: async_halving, metric: val_loss, time_metric: epochs, max_time: 4"
    stops = desk.submit(config, f"searcher={stopping}, num_rungs: 1, max_trials: 1}}")
    completed(desk, number)
    completed(desk, stops)
    trials = [desk.trial(number, index) for index in (0, 1)]
    assert sorted(trial.steps for trial in trials) == [2 * BATCHES, 4 * BATCHES]
    for index, trial in enumerate(trials):
        steps = [*range(BATCHES, trial.steps + 1, BATCHES)]
        assert [c.steps for c in trial.checkpoints] == steps
        assert desk.log(number, index).count("val_loss: ") == len(steps)


def test_it_is_tried_with_one_batch(desk: Desk, keras: Path) -> None:
    """`--test-mode` trains, validates and saves once."""
    config = str(project(desk, keras, "0.05"))
    done = desk.run("submit", config, "--test-mode", "--config", "searcher.metric=val_loss")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [steps for steps, _ in validations(desk, 1)] == [1]


def test_the_class_of_older_versions_is_told_what_to_do(keras: Path, tmp_path: Path) -> None:
    """`TFKerasTrial` is none of detslurm's."""
    code = "from detslurm.keras import TFKerasTrialContext"
    env = {"PYTHONPATH": str(keras), "KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: detslurm has no TFKerasTrialContext: call model.fit()")
