"""Trainings with Keras in one process: python keras_fits.py FOLDER prints what came of each (JSON).

Checkpoints are directories of FOLDER; which trial it is, and whether others' hyperparameters were
the same, is decided here. Searches, and the short training of a test, come with a store.
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
import pytest

import detslurm as det
from detslurm._base.contract import TEST_MODE
from detslurm._base.flag import PreemptFlag
from detslurm.keras import DeterminedCallback, _callback
from tests.pytorch.managed import Managed
from tests.pytorch.searched import Searched

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


class Validations(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts them."""

    count = 0

    def on_test_end(self, logs: Any = None) -> None:
        self.count += 1


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
    rates, info = Rates(), trial and SimpleNamespace(trial=trial, latest_checkpoint=checkpoint)
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
    return {**found, "losses": [*validations.values()], "saved": saved, "rated": rated}


def of_trial(**fields: Any) -> SimpleNamespace:
    known = {"trial_id": 2, "continues": None, "_hparams_changed": False, "_steps_completed": 0}
    return SimpleNamespace(**known | fields)


def script(callbacks: list[Any], rate: float = 0.05) -> None:
    """What a job runs: it trains for 5 epochs."""
    info = det.get_cluster_info()
    assert info is not None
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="mse")
    with det.core.init() as core:
        callback = DeterminedCallback(core, info.latest_checkpoint, info.trial.trial_id)
        model.fit(
            X, Y, batch_size=8, epochs=5, verbose=0, validation_data=(X, Y),
            callbacks=[*callbacks, callback],
        )  # fmt: skip


def search(name: str, **searcher: Any) -> dict[str, Any]:
    """Of each trial the steps of its checkpoints and how often it was validated."""
    counts: dict[int, Validations] = {}

    def code() -> None:
        info = det.get_cluster_info()
        assert info is not None
        count = counts.setdefault(info.trial.trial_id, Validations())
        script([count], info.trial.hparams["learning_rate"])

    searcher = {"name": "async_halving", "metric": "val_loss", "divisor": 2, **searcher}
    space = {"learning_rate": {"type": "categorical", "vals": [0.0001, 0.05]}}
    found = Searched(FOLDER / name, pytest.MonkeyPatch(), searcher, space, max_restarts=0)
    found.run(code)
    view = found.view()
    trials = [found.trial(index) for index in range(searcher["max_trials"])]
    saved = [[checkpoint.steps for checkpoint in trial.checkpoints] for trial in trials]
    validations = [counts[trial.id].count for trial in trials]
    steps = [trial.steps for trial in trials]
    return {"state": view.state, "steps": steps, "saved": saved, "validations": validations}


def tested() -> dict[str, list[int]]:
    """The steps of the short training of a test."""
    searcher = {"name": "single", "metric": "val_loss", "smaller_is_better": True}
    config = {"searcher": {**searcher, "max_length": {"batches": 1}}}
    with pytest.MonkeyPatch.context() as patch:
        managed = Managed(FOLDER / "tested", patch, config)
        with managed.run():
            patch.setenv(TEST_MODE, "1")
            script([])
    groups = {group: managed.steps(group) for group in ("training", "validation")}
    return {**groups, "saved": managed.checkpoints()}


class Ends(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training after its second epoch, in which a preemption comes."""

    def __init__(self, flag: PreemptFlag) -> None:
        super().__init__()
        self.flag = flag

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.flag.request_preemption()
            self.model.stop_training = True


def ended() -> dict[str, Any]:
    """Whether a training that is over is left for another run, and its checkpoints."""
    searcher = {"name": "single", "metric": "val_loss", "smaller_is_better": True}
    with pytest.MonkeyPatch.context() as patch:
        managed = Managed(FOLDER / "ended", patch, {"searcher": searcher})
        with managed.run() as flag:
            script([Ends(flag)])
            return {"left": flag.acknowledged, "saved": managed.checkpoints()}


def of_older_versions() -> str:
    """What is said of a class that detslurm does not have."""
    try:
        from detslurm.keras import TFKerasTrialContext as found
    except ImportError as err:
        return str(err)
    return str(found)


def main() -> None:
    """All of them."""
    halving = {"num_rungs": 2, "max_trials": 2, "max_concurrent_trials": 1}
    managed = {  # first, for the others decide themselves which trial it is
        "lengths": search("lengths", max_length={"epochs": 4}, **halving),
        "stopping": search("stops", time_metric="epochs", max_time=4, num_rungs=1, max_trials=1),
        "tested": tested(),
        "ended": ended(),
    }
    sgd = keras.optimizers.SGD
    reduced = keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: rate if epoch < 1 else 0.001
    )
    first = train(sgd(0.1), before=[reduced])
    last = first["saved"][2 * EPOCH]
    on = {"continues": 1, "_steps_completed": 2 * EPOCH}
    scheduled = train(sgd(COSINE))
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
        "namesake": train(sgd(0.1), last, of_trial(trial_id=1)),
        "scheduled": scheduled,
        "warm": train(sgd(COSINE), scheduled["saved"][2 * EPOCH], of_trial()),
        "adam": train(adam(0.1), averaged, of_trial()),
        "called": train(sgd(lambda: 0.05), called, of_trial()),
        "restored": train(sgd(0.05), before=[worst], epochs=9, checkpoint_epochs=0),
        "averaged": train(sgd(0.05, use_ema=True), checkpoint_epochs=3),
        "several": train(sgd(0.05), per_execution=4),
    }
    print(json.dumps({"fits": found, **managed, "older": of_older_versions()}))


if __name__ == "__main__":
    main()
