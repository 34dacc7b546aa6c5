"""Trainings with Keras in one process: python keras_fits.py FOLDER prints what came of each (JSON).

Checkpoints are directories of FOLDER; which trial it is, and whether others' hyperparameters were
the same, is decided here.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np

import detslurm as det
from detslurm.keras import DeterminedCallback, _callback

FOLDER = Path(sys.argv[1])
EPOCH, X = 10, np.random.default_rng(1).normal(size=(80, 4)).astype("float32")
Y = X.sum(1)
COSINE = keras.optimizers.schedules.CosineDecay(0.05, 2 * EPOCH)


class Rates(keras.callbacks.Callback):  # type: ignore[misc]
    """The learning rate of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[float] = []
        self.iterations: list[int] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.iterations.append(int(self.model.optimizer.iterations))
        self.found.append(round(float(self.model.optimizer.learning_rate), 4))


def train(
    optimizer: Any,
    checkpoint: str | None = None,
    trial: SimpleNamespace | None = None,
    *,
    before: Any = (),
    epochs: int = 2,
    fits: int = 1,
    per_execution: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """The rates, the steps that had validations and checkpoints, and how each is rated."""
    validations: dict[int, float] = {}
    saved: dict[int, str] = {}

    @contextlib.contextmanager
    def store_path(metadata: dict[str, Any], **more: Any) -> Iterator[tuple[Path, str]]:
        folder = FOLDER / f"{len(list(FOLDER.iterdir()))}"
        folder.mkdir()
        yield folder, folder.name
        saved[metadata["steps_completed"]] = folder.name

    def report(group: str, steps: int, metrics: dict[str, float]) -> None:
        if group == "validation":
            validations[steps] = metrics["val_loss"]

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    rates, info = Rates(), trial and SimpleNamespace(trial=trial)
    core: Any
    callback: Any
    module: Any = _callback
    module.get_cluster_info = lambda: info
    with det.core.init() as core:
        core.checkpoint.store_path = store_path
        core.checkpoint.restore_path = lambda uuid: contextlib.nullcontext(FOLDER / uuid)
        callback = DeterminedCallback(core, checkpoint, trial.trial_id if trial else 1, **options)
        callback._reports.report = report
        count = callback.on_train_batch_end

        def at_ends(batch: int, logs: Any = None) -> None:
            # As with `steps_per_execution`, which Keras has for TensorFlow and JAX alone.
            end = -(-(batch + 1) // per_execution) * per_execution - 1
            if batch in (end, EPOCH - 1):
                count(end, logs)

        callback.on_train_batch_end = at_ends
        for _ in range(fits):
            model.fit(
                X, Y, batch_size=8, epochs=epochs, verbose=0, validation_data=(X, Y),
                callbacks=[*before, rates, callback],
            )  # fmt: skip
    rated = {}
    for steps, name in saved.items():
        model.load_weights(FOLDER / name / "model.weights.h5")
        rated[steps] = [validations[steps], model.evaluate(X, Y, verbose=0)]
    found = {"rates": rates.found, "iterations": rates.iterations, "steps": [*validations]}
    return {**found, "saved": saved, "rated": rated}


def of_trial(**fields: Any) -> SimpleNamespace:
    known = {"trial_id": 2, "continues": None, "_hparams_changed": False, "_steps_completed": 0}
    return SimpleNamespace(**known | fields)


def main() -> None:
    """All of them."""
    sgd = keras.optimizers.SGD
    reduced = keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: rate if epoch < 1 else 0.001
    )
    first = train(sgd(0.1), before=[reduced])
    last = first["saved"][2 * EPOCH]
    on = {"continues": 1, "_steps_completed": 2 * EPOCH}
    scheduled = train(sgd(COSINE))["saved"][2 * EPOCH]
    adam = keras.optimizers.Adam
    averaged = train(adam(0.05))["saved"][2 * EPOCH]
    called = train(sgd(lambda: 0.05))["saved"][2 * EPOCH]
    worst = keras.callbacks.EarlyStopping(
        "val_loss", mode="max", patience=1, restore_best_weights=True
    )
    with contextlib.suppress(RuntimeError):
        train(sgd(0.1), fits=2)
        raise SystemExit("a second fit() was accepted")
    found = {
        "first": first,
        "continued": train(sgd(0.1), last, of_trial(**on), epochs=3),
        "changed": train(sgd(0.1), last, of_trial(**on, _hparams_changed=True), epochs=3),
        "copied": train(sgd(0.1), last, of_trial(_steps_completed=20), epochs=3),
        "warm": train(sgd(COSINE), scheduled, of_trial()),
        "adam": train(adam(0.1), averaged, of_trial()),
        "called": train(sgd(lambda: 0.05), called, of_trial()),
        "restored": train(sgd(0.05), before=[worst], epochs=9, checkpoint_epochs=0),
        "averaged": train(sgd(0.05, use_ema=True), checkpoint_epochs=3),
        "several": train(sgd(0.05), per_execution=4),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
