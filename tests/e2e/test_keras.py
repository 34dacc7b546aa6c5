"""Keras in trials: scripts that only add a callback."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.beside import keras
from tests.e2e.desk import Desk
from tests.e2e.test_main_job import make_room

__all__ = ["keras"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SCRIPT = """\
    import time
    import numpy as np
    import keras
    import determined as det
    from determined.keras import DeterminedCallback

    info = det.get_cluster_info()
    hparams, run = info.trial.hparams, info.trial._trial_run_id

    class Hold(keras.callbacks.Callback):
        batches = info.trial._steps_completed

        def hold(self):
            if self.batches == hparams["hold"][:run][-1]:
                print(f"holds in run {run}", flush=True)
                while not core.preempt.should_preempt():
                    time.sleep(0.05)

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
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
    with det.core.init() as core:
        callback = DeterminedCallback(
            core, checkpoint=info.latest_checkpoint, continue_id=info.trial.trial_id,
            train_metrics_report_period=hparams["period"],
        )
        model.fit(
            *records(64, 1), batch_size=8, epochs=5, shuffle=False, verbose=2,
            validation_data=records(16, 2), callbacks=[Hold(), callback],
        )
    """
CONFIG = """\
    hyperparameters:
      hold: [0]
      period: epoch
    environment:
      environment_variables: [PYTHONPATH={path}, OMP_NUM_THREADS=1, KERAS_BACKEND=torch]
    max_restarts: 0
    """


def validations(desk: Desk, number: int) -> list[tuple[int, float]]:
    return [
        (row.steps, float(row.metrics["val_loss"])) for row in desk.metrics(number, "validation")
    ]


def completed(desk: Desk, number: int) -> None:
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)


@pytest.mark.nightly
def test_it_goes_on_after_a_preemption(desk: Desk, keras: Path) -> None:
    """After an epoch with the numbers of an undisturbed training; an epoch that was left begins
    anew with what was trained."""
    config = desk.project(SCRIPT, CONFIG.replace("{path}", str(keras)))
    plain = "searcher.metric=val_loss"
    whole = desk.submit(config, plain, "hyperparameters.period=4")
    low = "resources.resource_pool=low"
    number = desk.submit(config, plain, low, "hyperparameters.hold=[8, 29, 0]")
    completed(desk, whole)
    for run in (1, 2):
        desk.wait_for_log(number, f"holds in run {run}")
        make_room(desk)
    completed(desk, number)
    assert desk.outcomes(number) == ["preempted", "preempted", "completed"]
    undisturbed, trial = desk.trial(whole), desk.trial(number)
    assert [c.steps for c in undisturbed.checkpoints] == [8, 16, 24, 32, 40]
    assert undisturbed.progress == 1.0
    assert [row.steps for row in desk.metrics(whole, "training")] == [*range(4, 41, 4)]
    assert [steps for steps, _ in validations(desk, whole)] == [8, 16, 24, 32, 40]
    assert [run.resumed_steps for run in trial.runs[1:]] == [8, 29]
    assert validations(desk, number)[:3] == validations(desk, whole)[:3]
    assert [steps for steps, _ in validations(desk, number)[3:]] == [37, 45]
    assert [c.steps for c in trial.checkpoints] == [8, 16, 24, 29, 37, 45]
