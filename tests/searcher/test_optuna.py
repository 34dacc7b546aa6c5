"""The optuna searcher: Optuna's samplers and pruners over a fold of events."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import optuna
import pytest
import torch

from detslurm.searcher import Search, State
from detslurm.searcher.optuna.bridge import PRUNERS, SAMPLERS, Bridge, BridgeError
from detslurm.searcher.optuna.history import TrialHistory
from detslurm.searcher.optuna.space import distributions, sample_of, suggest_by, to_params
from tests.searcher.conditional import OPTIMIZERS, is_possible

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

SPACE: dict[str, Any] = {
    "lr": {"type": "log", "base": 10, "minval": -4, "maxval": 0},
    "model": {
        "act": {"type": "categorical", "vals": ["relu", {"leaky": 0.1}, None]},
        "layers": {"type": "int", "minval": 1, "maxval": 9},
        "width": 64,
    },
    "x": {"type": "double", "minval": -5, "maxval": 5},
    "name": {"type": "const", "val": "n"},
}

Sample = dict[str, Any]


def loss(sample: Sample) -> float:
    """A known function: 0 at x = 1, 4 layers, lr = 0.01, relu."""
    model = sample["model"]
    penalty = 0.0 if model["act"] == "relu" else 1.0
    far = (sample["x"] - 1) ** 2 + abs(model["layers"] - 4) + (math.log10(sample["lr"]) + 2) ** 2
    return float(far + penalty)


def config(trials: int, seed: int = 3, space: Any = SPACE, **searcher: Any) -> dict[str, Any]:
    return {
        "searcher": {"name": "optuna", "metric": "loss", "max_trials": trials, **searcher},
        "hyperparameters": space,
        "reproducibility": {"experiment_seed": seed},
    }


class Job:
    """One worker that does all trials by itself, in a fresh process for every question."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.search = Search(config)
        self.state = self.search.initial()

    def apply(self, *events: dict[str, Any]) -> None:
        """Commit a fact; what is in the log is JSON."""
        self.search.apply(self.state, json.loads(json.dumps(events)))

    def begin(self, worker: str = "w") -> int:
        """Take the next trial and sample it."""
        self.apply({"e": "work_requested", "worker": worker})
        index = self.state.assignment(worker)
        assert index is not None
        self.apply(*self.suggestions())
        return index

    def suggestions(self) -> list[dict[str, Any]]:
        search = self.search
        self.state = search.load(search.dump(self.state))
        assert self.state.history is not None
        bridge = Bridge(search.searcher, search.space, search.seed)
        return bridge.suggest(self.state.history, search.unsampled(self.state))

    def report(self, index: int, time: int, metric: float) -> bool:
        """Report a validation as the chief does; whether the trial is to stop."""
        event = {"e": "validated", "trial": index, "time": time, "metric": metric}
        self.apply(self.search.judged(self.state, event))
        return self.state.trials[index].stop

    def leave(self, index: int, how: str = "completed", worker: str = "w") -> None:
        self.apply({"e": "run_ended", "trial": index, "worker": worker, "outcome": how})

    def run(self, objective: Callable[[Sample], float]) -> list[float]:
        """All trials, one after the other; what each came to."""
        values = []
        while not self.state.done:
            index = self.begin()
            values.append(objective(self.search.plan(self.state, index).hparams))
            self.report(index, 1, values[-1])
            self.leave(index)
        return values


def optunas(
    trials: int, sampler: str, seed: int = 3, enqueued: Sequence[dict[str, Any]] = ()
) -> list[float]:
    """The same by Optuna alone, as its users write it."""

    def objective(trial: optuna.Trial) -> float:
        sample = {
            "lr": trial.suggest_float("lr", 1e-4, 1, log=True),
            "model": {
                "act": trial.suggest_categorical("model.act", ["relu", "leaky", None]),
                "layers": trial.suggest_int("model.layers", 1, 9),
            },
            "x": trial.suggest_float("x", -5, 5),
        }
        return loss(sample)

    made = getattr(optuna.samplers, SAMPLERS[sampler])
    study = optuna.create_study(sampler=made(seed=seed))
    for params in enqueued:
        named = {**params, "model.act": ["relu", "leaky", None][params["model.act"]]}
        study.enqueue_trial(named)
    study.optimize(objective, n_trials=trials)
    return [trial.values[0] for trial in study.trials]


def rebuilt(space: Sample, params: Sample) -> Sample:
    """The sample of which these are Optuna's parameters; all of them are taken."""
    left = dict(params)
    sample = sample_of(space, lambda name, _: left.pop(name))
    assert not left
    return sample


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "qmc", "nsgaii"])
def test_a_search_goes_number_by_number_as_with_optuna_itself(sampler: str) -> None:
    """Trial by trial, and so in its best so far, though each sample is another process's."""
    ours = Job(config(60, sampler=sampler)).run(loss)
    assert ours == pytest.approx(optunas(60, sampler))


@pytest.mark.parametrize(("sampler", "trials"), [("tpe", 24), ("random", 9), ("brute_force", 4)])
def test_choices_go_as_with_optuna_itself(sampler: str, trials: int) -> None:
    """Of each choice the sampler is asked for its val, and for what this val holds."""
    steps = {"type": "int", "minval": 1, "maxval": 3}
    few = {"optimizer": {"type": "choice", "vals": ["none", {"name": "sgd", "momentum": steps}]}}
    space = few if sampler == "brute_force" else OPTIMIZERS

    def objective(sample: Sample) -> float:
        taken = {} if sample["optimizer"] == "none" else sample["optimizer"]
        return float(abs(taken.get("beta1", 0) - 0.9) + abs(taken.get("momentum", 2) - 0.9))

    job = Job(config(trials, space=space, sampler=sampler))
    ours = job.run(objective)
    study = optuna.create_study(sampler=getattr(optuna.samplers, SAMPLERS[sampler])(seed=3))
    study.optimize(lambda trial: objective(sample_of(space, suggest_by(trial))), n_trials=trials)
    assert ours == pytest.approx([trial.value for trial in study.trials])
    samples = [trial.hparams for trial in job.state.trials]
    assert all(is_possible(space, sample) for sample in samples)
    assert sampler != "brute_force" or len({json.dumps(sample) for sample in samples}) == 4


def test_the_optimum_is_found_in_as_few_trials() -> None:
    """Over several seeds the best loss is Optuna's, and far better than by chance."""
    trials, seeds = 40, range(5)
    ours = [min(Job(config(trials, seed)).run(loss)) for seed in seeds]
    assert ours == pytest.approx([min(optunas(trials, "tpe", seed)) for seed in seeds])
    chance = [min(optunas(trials, "random", seed)) for seed in seeds]
    factor = 0.5 if optuna.__version__ >= "5" else 0.75
    assert statistics.median(ours) < factor * statistics.median(chance)


def test_a_sampler_that_remembers_more_finds_it_as_well() -> None:
    """The Gaussian process begins each fit where the last one ended; a new one fits from scratch.

    So its samples are Optuna's but for rounding, and its optimum is as good.
    """
    torch.set_num_threads(1)
    ours, theirs = Job(config(13, sampler="gp")).run(loss), optunas(13, "gp")
    assert ours[:11] == pytest.approx(theirs[:11])
    assert min(ours) <= 1.1 * min(theirs) + 0.1


def test_samples_keep_to_the_space() -> None:
    """Ranges, categories of any kind and constants come out as the configuration has them."""
    job = Job(config(30, sampler="random"))
    job.run(loss)
    for trial in job.state.trials:
        sample = trial.hparams
        assert sample is not None
        assert sample["name"] == "n" and sample["model"]["width"] == 64
        assert 1e-4 <= sample["lr"] <= 1 and -5 <= sample["x"] <= 5
        assert sample["model"]["layers"] in range(1, 10)
        assert sample["model"]["act"] in ("relu", {"leaky": 0.1}, None)
        assert rebuilt(SPACE, to_params(SPACE, sample)) == sample


def test_corners_of_a_space() -> None:
    """Bases below 1, names with dots, and categories that Python takes for equal."""
    space = {
        "a": {"b": {"type": "int", "minval": 0, "maxval": 1}},
        "a.b": {"type": "log", "base": 0.5, "minval": 1, "maxval": 2},
        "flag": {"type": "categorical", "vals": [1, True, 1.0]},
    }
    params = {"a.b": 1, "a\\.b": 0.3, "flag": 2}
    sample = rebuilt(space, params)
    assert sample == {"a": {"b": 1}, "a.b": 0.3, "flag": 1.0}
    made = distributions(space, sample)
    assert made.keys() == params.keys()
    (log,) = (d for d in made.values() if getattr(d, "log", False) and d.high < 1)
    assert (log.low, log.high) == (0.25, 0.5)
    assert to_params(space, sample) == params
    assert to_params(space, {**sample, "flag": True})["flag"] == 1


def test_the_first_sample_stands() -> None:
    """Two workers that sample at once: one commits, the other takes what is there."""
    job = Job(config(4, max_concurrent_trials=2))
    for worker in ("a", "b"):
        job.apply({"e": "work_requested", "worker": worker})
    first, second = job.suggestions(), job.suggestions()
    assert first == second
    job.apply(*first)
    before = job.search.dump(job.state)
    job.apply(*second)
    assert job.search.dump(job.state) == before
    assert [t.hparams for t in job.state.trials] == [e["hparams"] for e in first]


def test_a_sample_that_was_overtaken_is_drawn_anew() -> None:
    """What was drawn before another's sample came would repeat its random numbers: it is void."""
    job = Job(config(4, sampler="random", max_concurrent_trials=2))
    job.apply({"e": "work_requested", "worker": "a"})
    early = job.suggestions()
    job.apply({"e": "work_requested", "worker": "b"})
    job.apply(*early)
    (mine,) = early
    job.apply({**mine, "trial": 1})
    assert job.search.unsampled(job.state) == [1]
    job.apply(*job.suggestions())
    assert job.search.unsampled(job.state) == []
    assert job.state.trials[0].hparams != job.state.trials[1].hparams


def test_trials_at_once_get_different_samples() -> None:
    """Ten workers that begin together get ten samples, and the same ones every time."""

    def begin() -> list[Any]:
        job = Job(config(20, max_concurrent_trials=10))
        for number in range(10):
            job.apply({"e": "work_requested", "worker": f"w{number}"})
        job.apply(*job.suggestions())
        return [t.hparams for t in job.state.trials]

    samples = begin()
    assert len({json.dumps(s) for s in samples}) == 10
    assert begin() == samples


@pytest.mark.parametrize("pruner", ["median", "successive_halving", "hyperband"])
def test_pruners_decide_as_in_optuna(pruner: str) -> None:
    """The same trials are pruned at the same reports as when Optuna runs the loop."""
    trials, steps = 25, 9

    def curve(x: float, step: int) -> float:
        return (x - 1) ** 2 + 3 / step

    space = {"x": {"type": "double", "minval": -5, "maxval": 5}}
    job, ours = Job(config(trials, space=space, sampler="random", pruner=pruner)), []
    while not job.state.done:
        index = job.begin()
        x = job.search.plan(job.state, index).hparams["x"]
        ran = next((s for s in range(1, steps + 1) if job.report(index, s, curve(x, s))), steps)
        job.leave(index, "completed")
        ours.append(ran)

    theirs = []

    def objective(trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", -5, 5)
        for step in range(1, steps + 1):
            trial.report(curve(x, step), step)
            if trial.should_prune():
                theirs.append(step)
                raise optuna.TrialPruned
        theirs.append(steps)
        return curve(x, steps)

    study = optuna.create_study(
        study_name="detslurm",
        sampler=optuna.samplers.RandomSampler(seed=3),
        pruner=getattr(optuna.pruners, PRUNERS[pruner])(),
    )
    study.optimize(objective, n_trials=trials)
    assert ours == theirs
    assert min(ours) < steps
    assert {t.outcome for t in job.state.trials} == {"stopped", "completed"}


def test_a_patient_pruner_wraps_another() -> None:
    """Its `wrapped_pruner` is a name; arguments of that one go in `wrapped_args`."""
    args = {"wrapped_pruner": "median", "wrapped_args": {"n_startup_trials": 1}, "patience": 2}
    job = Job(config(3, sampler="random", pruner="patient", pruner_args=args))
    stops = []
    for metric in (1.0, 2.0):
        index = job.begin()
        stops.append([job.report(index, step, metric + step / 10) for step in range(1, 6)])
        job.leave(index)
    assert not any(stops[0])
    assert any(stops[1]) and not any(stops[1][:3])


@pytest.mark.parametrize("how", ["error", "invalid_hp", "canceled"])
def test_failed_trials_are_told_as_failed(how: str) -> None:
    """They teach the sampler nothing; only refused samples are replaced."""
    job = Job(config(3))
    job.leave(job.begin(), how)
    job.run(loss)
    assert job.state.history is not None
    assert job.state.history.trials[0].state == "failed"
    assert job.state.created == (4 if how == "invalid_hp" else 3)


@pytest.mark.parametrize("diverged", [math.nan, -math.inf])
def test_no_number_is_the_worst_result(diverged: float) -> None:
    """A NaN does not break the search; the sampler keeps away from it."""
    job = Job(config(40, seed=1))
    values = job.run(lambda s: diverged if s["x"] < 0 else loss(s))
    assert job.state.done
    bad = [not math.isfinite(v) for v in values]
    assert sum(bad[20:]) < sum(bad[:10]) + 3
    assert min(v for v in values if math.isfinite(v)) < 1.5


def test_a_lost_run_changes_nothing() -> None:
    """The trial goes on with its sample in another job; what it reports again is known already."""
    job = Job(config(2, pruner="median"))
    index = job.begin()
    job.report(index, 1, 0.5)
    sample = job.state.trials[index].hparams
    job.leave(index, "lost")
    assert job.begin("x") == index
    assert job.state.trials[index].hparams == sample
    job.report(index, 1, 0.9)
    assert job.state.history is not None
    assert job.state.history.trials[index].reports == [(1, 0.5)]


def test_workers_that_die_before_they_sample_cost_no_sample() -> None:
    """A search of three has three samples then; it ends though all workers die of its sampler."""
    job = Job(config(3) | {"max_restarts": 1})
    for n in range(5):
        job.apply({"e": "work_requested", "worker": f"w{n}"})
        job.leave(0, "lost", f"w{n}")
    job.run(loss)
    assert [trial.outcome for trial in job.state.trials] == ["completed"] * 3
    assert job.state.history is not None and len(job.state.history.trials) == 3
    dying = Job(config(1) | {"max_restarts": 1})
    for n in range(100):
        dying.apply({"e": "work_requested", "worker": f"w{n}"})
        dying.leave(0, "lost", f"w{n}")
    assert dying.state.verdict == "error"


def test_a_trial_with_a_length_is_told_at_its_end() -> None:
    """The last metric counts, whatever unit the length has, and the trial closes."""
    job = Job(config(1, max_length={"epochs": 2}))
    index = job.begin()
    assert job.state.trials[index].target_length == 2
    job.report(index, 600, 0.75)
    job.apply({"e": "validated", "trial": index, "length": 2, "metric": 0.25})
    job.leave(index, "out_of_ops")
    assert job.state.done
    assert job.state.history is not None
    known = job.state.history.trials[index]
    assert (known.state, known.reports[-1][1]) == ("complete", 0.25)


def test_reports_on_the_way_are_progress() -> None:
    """Where they are counted as the length is; the trial is settled by its own end alone."""
    for length, progress in (({"batches": 100}, 0.9), ({"epochs": 2}, 0.0)):
        job = Job(config(1, time_metric="batches", max_length=length))
        index = job.begin()
        job.report(index, 50, 0.5)
        job.report(index, 90, 0.5)
        assert job.search.progress(job.state) == progress
        job.report(index, 200, 0.5)
        assert not job.state.trials[index].settled


def test_a_sampler_of_another_version_goes_on_as_it_can() -> None:
    """Where asking again gives other samples, those of the log stand and the search goes on."""
    job = Job(config(12, sampler="cmaes"))
    for _ in range(6):
        index = job.begin()
        job.report(index, 1, 1.0)
        job.leave(index)
    history = job.state.history
    assert history is not None
    history.trials[2].hparams["x"] = 0.125
    index = job.begin()
    assert job.state.trials[index].hparams is not None


@pytest.mark.parametrize(
    ("searcher", "message"),
    [
        ({"sampler_args": {"n_startup": 3}}, "searcher.sampler_args: Optuna's TPESampler refuses"),
        ({"pruner": "percentile"}, "searcher.pruner_args: Optuna's PercentilePruner refuses"),
    ],
)
def test_arguments_that_optuna_refuses(searcher: dict[str, Any], message: str) -> None:
    """The error names the section of the configuration and says what Optuna says."""
    with pytest.raises(BridgeError, match=message):
        made = {"name": "optuna", "metric": "loss", **searcher}
        Bridge(made, SPACE, 0).suggest(TrialHistory(), [0])


def test_a_report_without_a_pruner_is_committed_as_it_is() -> None:
    """Nothing is added, and nothing imported."""
    job = Job(config(1))
    event = {"e": "validated", "trial": job.begin(), "time": 1, "metric": 2.0}
    assert job.search.judged(job.state, event) == event
    assert isinstance(job.state, State)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsgaii"])
def test_points_are_tried_first_as_enqueued_trials_are(sampler: str) -> None:
    """The samples after them are those of Optuna, which was given the same trials to begin with."""
    point = {"lr": 0.01, "model": {"act": "relu", "layers": 4}, "x": 1.5}
    job = Job(config(30, sampler=sampler, first=[point, {"x": -1.0}]))
    ours = job.run(loss)
    assert ours[0] == pytest.approx(0.25)
    first = [job.search.samples.plan(index).hparams for index in (0, 1)]
    assert first[1]["x"] == -1.0
    enqueued = [to_params(SPACE, sample) for sample in first]
    assert ours == pytest.approx(optunas(30, sampler, enqueued=enqueued))
