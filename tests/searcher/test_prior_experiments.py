"""Results of earlier experiments: which of them a search takes, and what it makes of them."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import optuna
import pytest

from detslurm.searcher import Search
from detslurm.searcher.events import KnownResults
from detslurm.searcher.known import (
    MOST,
    EarlierExperiment,
    EarlierTrial,
    known_results,
    summary,
    with_wholes,
)
from detslurm.searcher.optuna.bridge import Bridge, BridgeError
from detslurm.searcher.optuna.history import KnownTrial
from tests.searcher.drive import leave, report, take, take_sampled

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": 0},
    "net": {
        "x": {"type": "double", "minval": -5.0, "maxval": 5.0},
        "act": {"type": "categorical", "vals": ["relu", "tanh"]},
    },
    "batch": 32,
}
SEARCHER: dict[str, Any] = {"name": "optuna", "metric": "loss", "max_trials": 9}


def trial(loss: Any = 0.5, lr: float = 0.01, **more: Any) -> EarlierTrial:
    hparams = {"lr": lr, "net": {"x": 1.0, "act": "relu"}, "batch": 32, "path": "/a", **more}
    return EarlierTrial(hparams, {} if loss is None else {"loss": loss}, steps=10)


def taken(*trials: EarlierTrial, then: Any = SPACE, **searcher: Any) -> KnownResults:
    earlier = {7: EarlierExperiment(then, list(trials))}
    return known_results({**SEARCHER, **searcher}, SPACE, earlier)


def test_results_of_the_space_are_taken_and_others_are_counted() -> None:
    """What varies now has to have a value in its range; constants of the training differ freely."""
    short = EarlierTrial({"lr": 0.1}, {"loss": 1.0})
    found = taken(
        trial(0.5), trial(0.1, lr=5.0), trial(None), short, trial(0.3, batch=64), trial(math.nan)
    )
    assert [known.reports for known in found.results] == [[(10, 0.5)], [(10, 0.3)], [(10, None)]]
    assert found.results[0].hparams == {"lr": 0.01, "net": {"x": 1.0, "act": "relu"}}
    assert (found.outside, found.unmeasured) == (2, 1)
    text = "3 results of experiment 7; skipped: 2 outside of the space, 1 without the metric"
    assert summary(found) == text


def test_a_constant_that_varied_then_has_to_be_the_same() -> None:
    then = {**SPACE, "batch": {"type": "int", "minval": 16, "maxval": 64}}
    found = taken(trial(0.5), trial(0.3, batch=64), then=then)
    assert [known.reports for known in found.results] == [[(10, 0.5)]]
    assert found.outside == 1


def test_the_newest_are_taken() -> None:
    earlier = {
        8: EarlierExperiment(SPACE, [trial(2.0)]),
        7: EarlierExperiment(SPACE, [trial(float(n)) for n in range(MOST)]),
    }
    found = known_results(SEARCHER, SPACE, earlier)
    assert (len(found.results), found.older) == (MOST, 1)
    assert [known.reports[0][1] for known in found.results[-2:]] == [MOST - 1.0, 2.0]
    assert "of experiments 7, 8; skipped: 1 older than the newest 1,000" in summary(found)


def test_trials_that_were_ended_early_count_as_pruned() -> None:
    trials = [msgspec.structs.replace(trial(), steps=steps) for steps in (9, 3, 9)]
    states = [known.state for known in taken(*with_wholes(trials, early=True)).results]
    assert states == ["complete", "pruned", "complete"]
    states = [known.state for known in taken(*with_wholes(trials, early=False)).results]
    assert states == ["complete"] * 3


def test_results_are_placed_by_the_time_metric_where_they_have_it() -> None:
    known = EarlierTrial(trial().hparams, {"loss": 0.5, "epochs": 3}, steps=900)
    assert taken(known, time_metric="epochs").results[0].reports == [(3, 0.5)]


def loss(sample: Any) -> float:
    net = sample["net"]
    return float((net["x"] - 1) ** 2 + (math.log10(sample["lr"]) + 2) ** 2 + (net["act"] != "relu"))


def earlier(count: int, seed: int = 99) -> list[KnownTrial]:
    """Results of a random search over the same space."""
    searcher = {**SEARCHER, "name": "random", "max_trials": count}
    samples = _search(searcher, seed).samples
    drawn = [samples.plan(index).hparams for index in range(count)]
    found = known_results(
        SEARCHER, SPACE, {7: EarlierExperiment(SPACE, [_result(sample) for sample in drawn])}
    )
    return found.results


def _result(sample: dict[str, Any]) -> EarlierTrial:
    return EarlierTrial(sample, {"loss": loss(sample)}, steps=1)


def _search(searcher: dict[str, Any], seed: int = 3) -> Search:
    return Search(
        {
            "searcher": searcher,
            "hyperparameters": SPACE,
            "reproducibility": {"experiment_seed": seed},
        }
    )


def losses(searcher: dict[str, Any], known: list[KnownTrial], trials: int = 8) -> list[float]:
    """The losses of a search, one trial at a time, with a bridge for each question."""
    search = _search({**searcher, "max_concurrent_trials": 1, "max_trials": trials})
    state, found = search.initial(), []
    event = msgspec.to_builtins(KnownResults(experiments=[7], results=known))
    other = {**event, "results": event["results"][:1]}  # the prefix of a parent comes first, too
    search.apply(state, json.loads(json.dumps([event, other])))
    for _ in range(trials):
        index = take_sampled(search, state)
        found.append(loss(search.plan(state, index).hparams))
        report(search, state, index, 1, found[-1])
        leave(search, state, index, "completed")
    return found


def optunas(sampler: Any, known: list[KnownTrial], trials: int = 8) -> list[float]:
    """The same by Optuna itself."""
    study = optuna.create_study(sampler=sampler)
    for one in _frozen(known):
        study.add_trial(one)

    def objective(trial: optuna.Trial) -> float:
        return loss(
            {
                "lr": trial.suggest_float("lr", 1e-4, 1.0, log=True),
                "net": {
                    "act": ["relu", "tanh"][trial.suggest_categorical("net.act", [0, 1])],
                    "x": trial.suggest_float("net.x", -5.0, 5.0),
                },
            }
        )

    study.optimize(objective, n_trials=trials)
    return [trial.value or 0.0 for trial in study.trials[len(known) :]]


def _frozen(known: list[KnownTrial], numbers: bool = False) -> list[optuna.trial.FrozenTrial]:
    bridge = Bridge(SEARCHER, SPACE, 3)
    frozen = [bridge._frozen(one) for one in known]
    kept = ("lr", "net.x") if numbers else ("lr", "net.act", "net.x")
    return [
        optuna.trial.create_trial(
            value=one.value,
            params={name: one.params[name] for name in kept},
            distributions={name: one.distributions[name] for name in kept},
        )
        for one in frozen
    ]


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_tpe_learns_from_the_first_trial_on_as_with_added_trials() -> None:
    known = earlier(30)
    ours = losses({**SEARCHER, "sampler": "tpe"}, known)
    assert ours == pytest.approx(optunas(optuna.samplers.TPESampler(seed=3), known))
    assert sorted(ours)[3] < sorted(losses({**SEARCHER, "sampler": "tpe"}, []))[3]


def test_cmaes_begins_with_them_as_its_source_trials() -> None:
    """Its trials are replayed for each question, with the same source."""
    known = earlier(30)
    sampler = optuna.samplers.CmaEsSampler(seed=3, source_trials=_frozen(known, numbers=True))
    ours = losses({**SEARCHER, "sampler": "cmaes"}, known)
    assert ours == pytest.approx(optunas(sampler, known))
    with pytest.raises(BridgeError, match=r"prior_experiments: cmaes needs 10 .* found 9"):
        losses({**SEARCHER, "sampler": "cmaes"}, known[:9])


def test_pruners_do_not_compare_with_them() -> None:
    search = _search({**SEARCHER, "pruner": "median"})
    state = search.initial()
    search.apply(state, [msgspec.to_builtins(KnownResults([7], earlier(12)))])
    assert state.history is not None
    assert state.history.known == []


def test_a_model_of_halving_begins_with_them() -> None:
    """Until a rung has enough results of its own; its trials of a low rung were trained less."""
    searcher = {
        "name": "async_halving",
        "metric": "loss",
        "sampler": "tpe",
        "num_rungs": 2,
        "divisor": 2,
        "time_metric": "batches",
        "max_time": 4,
        "max_trials": 40,
        "max_concurrent_trials": 1,
        "first": [{"lr": 0.01}] * 2,
    }
    search, known = _search(searcher), earlier(20)
    state = search.initial()
    search.apply(state, [msgspec.to_builtins(KnownResults([7], known))])
    seen: dict[int, int] = {}
    for _ in range(16):
        index = take(search, state)
        if search.unsampled(state):
            seen[index] = len(search.history(state).known)
            sampled = {"e": "sampled", "trial": index, "hparams": search.samples.plan(0).hparams}
            search.apply(state, [sampled])
        report(search, state, index, 2, 1.0 + index)
        leave(search, state, index, "stopped")
    assert list(seen)[:3] == [2, 4, 5]  # two points first, and each third is random
    assert [seen[index] for index in (2, 4, 5)] == [20, 20, 20]
    assert seen[14] == 0
