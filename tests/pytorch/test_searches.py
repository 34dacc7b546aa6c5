"""Trials of real searches: the Trainer follows what the search wants, whoever says how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm import InvalidHP, get_cluster_info, pytorch
from detslurm.pytorch import Batch, Epoch
from detslurm.pytorch._state import TrialState
from detslurm.pytorch.checkpointing._checkpoint_policy import CheckpointPolicy
from detslurm.pytorch.harness import main
from detslurm.store import trial_metrics
from tests.pytorch.searched import Searched
from tests.pytorch.trials import Regression, same, weights

RATE = {"rate": {"type": "log", "base": 10, "minval": -4, "maxval": -1}}
ASHA = {
    "name": "adaptive_asha",
    "max_trials": 4,
    "max_rungs": 3,
    "divisor": 2,
    "mode": "aggressive",
    "max_concurrent_trials": 1,
}
EPOCH = 12  # batches


class Searching(Regression):
    """Learns at the rate of its sample; some samples are no good, some stop early."""

    refuses = stops = ""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] = context.get_hparam("rate")
        self.scheduler.base_lrs = [context.get_hparam("rate")]

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        number = str(self.context.get_trial_id())
        if batch_idx == 2 and number in self.refuses:
            raise InvalidHP(f"rate {self.context.get_hparam('rate')} is no good")
        if batch_idx == 2 and number in self.stops:
            self.context.set_stop_requested(True)
        return super().train_batch(batch, epoch_idx, batch_idx)


class Refusing(Searching):
    refuses, stops = "1", "3"


class Losing(Searching):
    """Its validations lack what the search goes by."""

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"error": super().evaluate_batch(batch, batch_idx)["loss"]}


class Measured(Searching):
    """Its validations have a metric and a bounded figure beside the loss."""

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        loss = super().evaluate_batch(batch, batch_idx)["loss"]
        rate = self.context.get_hparam("rate")
        return {"loss": loss, "rate": rate, "size": float(self.context.get_trial_id())}


def script(kind: type[Searching] = Searching, **fit: Any) -> Any:
    """A script with the Trainer, as a job runs it."""

    def run() -> None:
        info = get_cluster_info()
        assert info is not None
        with pytorch.init(hparams=info.trial.hparams) as context:
            trainer = pytorch.Trainer(kind(context), context)
            trainer.fit(latest_checkpoint=info.latest_checkpoint, **fit)

    return run


def by_class(kind: type[Searching] = Searching) -> Any:
    """The class alone, trained by the configuration."""
    return lambda: main([f"{kind.__module__}:{kind.__name__}"])


def validated(search: Searched, index: int) -> list[int]:
    trial = search.trial(index)
    folder = search.experiment.trial(trial.id)
    return [row.steps for row in trial_metrics(folder, "validation")]


@pytest.mark.parametrize("how", ["script", "class"])
def test_promotion_in_epochs(root: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Each operation ends with a validation at its epoch; a promoted trial goes on from there."""
    search = Searched(root, monkeypatch, {**ASHA, "max_length": {"epochs": 4}}, RATE)
    state = search.run(script() if how == "script" else by_class())
    (bracket,) = state.brackets
    assert [(rung.units, len(rung.results)) for rung in bracket.rungs] == [(1, 4), (2, 2), (4, 1)]
    for index, trial in enumerate(state.trials):
        rungs = [rung.units for rung in bracket.rungs if rung.units <= trial.reached]
        assert validated(search, index) == [units * EPOCH for units in rungs]
        runs = search.trial(index).runs
        assert [run.resumed_steps for run in runs] == sorted({run.resumed_steps for run in runs})
    assert max(len(search.trial(index).runs) for index in range(4)) > 1, "nobody was paused"
    assert search.view().state == "COMPLETED"


@pytest.mark.parametrize("how", ["script", "class"])
def test_stopping_in_batches(root: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The reports decide: who is stopped saves and leaves at once, the best train to max_time."""
    searcher = {**ASHA, "time_metric": "batches", "max_time": 20}
    more = {"min_validation_period": {"batches": 5}, "scheduling_unit": 50}
    search = Searched(root, monkeypatch, searcher, RATE, **more)
    code = script(validation_period=Batch(5)) if how == "script" else by_class()
    state = search.run(code)
    outcomes = [trial.outcome for trial in state.trials]
    assert "stopped" in outcomes and "completed" in outcomes
    for index, trial in enumerate(state.trials):
        last = 20 if trial.outcome == "completed" else validated(search, index)[-1]
        assert validated(search, index) == list(range(5, last + 1, 5))
        view = search.trial(index)
        assert view.latest_checkpoint is not None and view.latest_checkpoint.steps == last
        assert (view.state, len(view.runs)) == ("COMPLETED", 1)


def test_several_metrics_and_a_constraint(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer reports all of them; the policy `best` saves what no earlier one dominates."""
    metrics = [{"name": "loss"}, {"name": "rate", "smaller_is_better": False}]
    more = {"metrics": metrics, "constraints": {"size": "<= 3"}}
    search = Searched(root, monkeypatch, {**ASHA, "max_length": {"epochs": 4}, **more}, RATE)
    state = search.run(script(Measured, validation_period=Epoch(1), checkpoint_policy="best"))
    assert search.view().state == "COMPLETED"
    (bracket,) = state.brackets
    assert [(rung.units, len(rung.results)) for rung in bracket.rungs] == [(1, 4), (2, 2), (4, 1)]
    for index, trial in enumerate(state.trials):
        assert trial.metrics.keys() == {"loss", "rate", "size"}
        saved = {one.steps for one in search.trial(index).checkpoints}
        assert saved <= set(validated(search, index)) and trial.reached * EPOCH in saved


def test_a_front_of_validations() -> None:
    """One that an earlier validation dominates or equals is not worth a checkpoint."""
    searcher = {"metrics": [{"name": "a"}, {"name": "b"}], "metric": "a"}
    policy, state = CheckpointPolicy("best", searcher, None, needed=True), TrialState()
    values = [(1, 5), (2, 6), (1, 5), (2, 4), (0.5, 4.5), (float("nan"), 0)]
    reports = [{"a": a, "b": b} for a, b in values]
    saved = [policy.is_to_be_saved(policy.searcher_metric(one), state) for one in reports]
    assert saved == [True, False, False, True, True, False]
    assert state.front == [{"a": 2.0, "b": 4.0}, {"a": 0.5, "b": 4.5}]


def test_samples_that_are_refused_and_trials_that_stop(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InvalidHP makes room for another sample and says why; who stops by itself is the worst."""
    search = Searched(root, monkeypatch, {**ASHA, "max_length": {"batches": 16}}, RATE)
    state = search.run(script(Refusing))
    assert state.created == 5 and search.view().state == "COMPLETED"
    refused, stopped = search.trial(0), search.trial(2)
    assert refused.invalid and "is no good" in (refused.end_reason or "")
    assert (state.trials[2].outcome, stopped.state, stopped.steps) == ("completed", "COMPLETED", 3)
    (bracket,) = state.brackets
    worst = bracket.rungs[0].results[-1]
    assert worst[2] == 2 and worst[0] == float("inf")


def test_a_wrong_metric_ends_the_search_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No restart and no other trial would help: the reason names what was reported."""
    searcher = {**ASHA, "time_metric": "epochs", "max_time": 4}
    search = Searched(root, monkeypatch, searcher, RATE)
    state = search.run(script(Losing, validation_period=Epoch(1), checkpoint_policy="all"))
    assert search.runs == [(0, "error")]
    assert (state.verdict, search.view().state) == ("error", "ERROR")
    reason = search.trial(0).end_reason or ""
    assert "searcher metric (loss)" in reason and "error" in reason


def test_a_search_of_refused_samples_is_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search gives up at some point, and that is no success."""

    def refuse() -> None:
        with pytorch.init(hparams={}):
            raise InvalidHP("never")

    monkeypatch.setattr("detslurm.searcher.method.INVALID_FLOOR", 3)
    monkeypatch.setattr("detslurm.searcher.method.INVALID_FACTOR", 1)
    search = Searched(root, monkeypatch, {**ASHA, "max_length": 4}, RATE)
    state = search.run(refuse)
    assert (state.created, state.verdict) == (5, "error")
    assert search.view().state == "ERROR"


def test_population_based_training(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy goes on where its original is, with its weights and its clock, at its own rate."""
    population = {
        "name": "pbt",
        "population_size": 3,
        "num_rounds": 2,
        "length_per_round": {"epochs": 1},
        "replace_function": {"truncate_fraction": 0.34},
        "explore_function": {"resample_probability": 1.0},
    }
    begun: dict[int, tuple[int, float, list[Any]]] = {}
    ended: dict[int, list[Any]] = {}

    class Curious(Searching):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            number = self.context.get_trial_id()
            if number not in begun:
                rate = self.optimizer.param_groups[0]["lr"]
                begun[number] = (batch_idx, rate, weights(self))
            result = super().train_batch(batch, epoch_idx, batch_idx)
            if batch_idx == EPOCH - 1:
                ended[number] = weights(self)
            return result

    search = Searched(root, monkeypatch, population, RATE)
    state = search.run(script(Curious))
    assert search.view().state == "COMPLETED" and state.created == 4
    copy, source = search.trial(3), state.trials[3].source
    assert source is not None
    original = search.trial(source)
    first, rate, inherited = begun[copy.id]
    assert first == EPOCH and copy.runs[0].resumed_steps == EPOCH
    assert same(inherited, ended[original.id])
    assert copy.hparams != original.hparams
    assert rate == pytest.approx(copy.hparams["rate"] * 0.95**EPOCH)  # type: ignore[index]
    assert validated(search, 3) == [2 * EPOCH]
    survivor = next(i for i in range(3) if state.trials[i].reached == 2)
    assert validated(search, survivor) == [EPOCH, 2 * EPOCH]
