"""What the suite's stores hold: experiments, trials and runs made in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.store import ExperimentDir, RunLog, Store, TrialDir
from detslurm.store.records import Created
from tests.store.clients import elsewhere


@elsewhere
def experiment(store: Store, trials: int = 1, **created: Any) -> ExperimentDir:
    """A visible experiment with its trials' ids and buckets."""
    made = store.new_experiment()
    first = store.reserve_trials(made.id, trials)
    made.prepare_trials(first, trials)
    fact = {"name": "scene", "first_trial": first, "trials": trials, "metric": "loss"}
    assert made.create(Created(**{**fact, **created}))
    return made


def trial(store: Store) -> TrialDir:
    """The one trial of a new experiment."""
    made = experiment(store)
    return made.trial(made.created().first_trial)


def claim(trial: TrialDir, run: int, **record: Any) -> bool:
    """Claim a run of a trial; exactly one caller gets True."""
    trial.create()
    return trial._claim(run, record)


def metrics(steps: int, group: str = "training", **values: Any) -> dict[str, Any]:
    """A metrics record."""
    return {"t": "metrics", "group": group, "steps": steps, "metrics": values}


def checkpoint(uuid: str, steps: int) -> dict[str, Any]:
    """A checkpoint's manifest record."""
    return {"t": "checkpoint", "uuid": uuid, "steps": steps, "resources": {}, "metadata": {}}


@elsewhere
def run(
    of: TrialDir,
    records: list[dict[str, Any]],
    outcome: str | None = None,
    resume: Mapping[str, Any] | None = None,
    **end: Any,
) -> int:
    """One run with its records and, where an outcome is given, its end record."""
    number: int = of.open_run({"resume": resume, "hparams": {"lr": 0.1}, "time": 1.0}).run
    with RunLog.open(of.records_path(number)) as log:
        for record in records:
            log.append(record)
    if outcome is not None:
        assert of.write_end(number, {"outcome": outcome, "time": 2.0, **end})
    return number


@elsewhere
def finished(store: Store, **created: Any) -> ExperimentDir:
    """An experiment whose one trial completed."""
    made = experiment(store, **created)
    only = made.trial(made.created().first_trial)
    run(only, [metrics(1, "validation", loss=0.5), checkpoint("c", 1)], "completed")
    return made
