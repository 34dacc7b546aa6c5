"""Optuna's samplers and pruners, asked by a process that lives for one question.

The known results of trials make an in-memory study; the sampler's generators go on where the
last one left them. A search of one trial at a time thus gives, number by number, what Optuna
gives with the same sampler and seed. Only searches by Optuna import it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from detslurm.config.secret_values import masked_sample
from detslurm.searcher.events import finite
from detslurm.searcher.objectives import Objectives
from detslurm.searcher.optuna.history import KnownTrial, TrialHistory
from detslurm.searcher.optuna.rng import advance, positions
from detslurm.searcher.optuna.space import distributions, sample_of, suggest_by, to_params
from detslurm.searcher.sampling import Samples

SAMPLERS = {
    "brute_force": "BruteForceSampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "nsgaii": "NSGAIISampler",
    "nsgaiii": "NSGAIIISampler",
    "qmc": "QMCSampler",
    "random": "RandomSampler",
    "tpe": "TPESampler",
}
PRUNERS = {
    "hyperband": "HyperbandPruner",
    "median": "MedianPruner",
    "nop": "NopPruner",
    "patient": "PatientPruner",
    "percentile": "PercentilePruner",
    "successive_halving": "SuccessiveHalvingPruner",
    "threshold": "ThresholdPruner",
    "wilcoxon": "WilcoxonPruner",
}
# Modules that Optuna imports for them after some trials, too late to choose another sampler.
_PACKAGES = {
    "cmaes": ("cmaes",),
    "gp": ("scipy", "torch"),
    "qmc": ("scipy",),
    "wilcoxon": ("scipy",),
}
_SOURCES = 10  # results, the best tenth of which CMA-ES begins with
# These keep notes in the study, which are had again by asking for all trials once more.
_REPLAYED = frozenset({"cmaes", "nsgaii", "nsgaiii", "qmc"})
# The model of a halving search: TPE in Optuna 4 has the defaults of 5. GP needs no such arguments.
_MODEL_ARGUMENTS: dict[str, dict[str, bool]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "gp": {},
}


class BridgeError(Exception):
    """Optuna is missing, or can't do what the configuration asks; the message proposes a change."""


class Bridge:
    """The questions, for the `searcher` and `hyperparameters` of one experiment."""

    def __init__(self, searcher: Mapping[str, Any], space: Mapping[str, Any], seed: int) -> None:
        self._searcher, self._space, self._seed = searcher, space, seed
        self._optuna = _quiet_optuna()
        self._shared: dict[tuple[str, ...], _Shared] = {}
        self._samples = Samples(searcher, space, seed)  # the points that are tried first
        self._objectives = Objectives.of(searcher)
        if self._objectives.constraints and not hasattr(self._optuna.Trial, "set_constraint"):
            raise BridgeError("constraints need Optuna 5: pip install 'optuna>=5'")

    def suggest(self, history: TrialHistory, wanted: Iterable[int]) -> list[dict[str, Any]]:
        """`sampled` events for trials, in order.

        Those of the optuna searcher hold only as long as each is the next.
        """
        if self._searcher["name"] != "optuna":
            return self._modelled(history, wanted)
        study = self._replayed(history) if self._kind in _REPLAYED else None
        study = study or self._rebuilt(history)
        events: list[dict[str, Any]] = []
        for count, index in enumerate(wanted, len(history.trials)):
            event = self._sampled(index, self._ask(study, index))
            generators = positions(study.sampler, self._sampler(history.known))
            events.append({**event, "after": count, "generators": generators})
        return events

    def _modelled(self, history: TrialHistory, wanted: Iterable[int]) -> list[dict[str, Any]]:
        """Samples from a model of one rung, each by a new sampler with a seed of the trial's own.

        A trial in the study that has no result counts as running.
        """
        study = self._study(None)
        for known in (*history.known, *history.trials.values()):
            study.add_trial(self._frozen(known))
        events = []
        for index in wanted:
            study.sampler = self._model(index)
            events.append(self._sampled(index, self._asked_of(study)))
        return events

    def _sampled(self, index: int, trial: Any) -> dict[str, Any]:
        params = trial.params
        sample = masked_sample(sample_of(self._space, lambda name, _: params[name]), self._space)
        version = self._optuna.__version__
        return {"e": "sampled", "trial": index, "hparams": sample, "optuna": version}

    def judge(
        self, history: TrialHistory, index: int, at: int, metric: float | None
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the pruner ends a trial that reports now, and what it notes down of it."""
        study = self._rebuilt(_with_report(history, index, at, metric), trials_only=True)
        number = list(history.trials).index(index)
        stop = study.pruner.prune(study, study.get_trials(deepcopy=True)[number])
        return bool(stop), dict(study.get_trials(deepcopy=False)[number].system_attrs)

    # -- studies ---------------------------------------------------------------------------------

    def _study(self, sampler: Any) -> Any:
        metrics = self._objectives.metrics
        directions = ["minimize" if one.smaller_is_better else "maximize" for one in metrics]
        # Hyperband shares trials out by the name of the study: it has to stay the same.
        return self._optuna.create_study(
            sampler=sampler, pruner=self._pruner(), directions=directions, study_name="detslurm"
        )

    def _rebuilt(self, history: TrialHistory, *, trials_only: bool = False) -> Any:
        """A study with the trials as they stand."""
        study = self._study(None if trials_only else self._sampler(history.known))
        for known in (*history.known, *history.trials.values()):
            study.add_trial(self._frozen(known))
        if not trials_only:
            advance(study.sampler, history.generators)
        return study

    def _replayed(self, history: TrialHistory) -> Any | None:
        """A study to which the history was replayed; None where it answers otherwise."""
        study = self._study(self._sampler(history.known))
        for known in history.known:
            study.add_trial(self._frozen(known))
        trials: dict[int, Any] = {}
        for step in history.order:
            index = step if step >= 0 else ~step
            known = history.trials[index]
            if step < 0:
                self._tell(study, trials[index], known)
                continue
            if index not in trials:
                trials[index] = self._ask(study, index)
            if trials[index].params != to_params(self._space, known.hparams):
                return None  # another version of Optuna or numpy drew it
        return study

    def _ask(self, study: Any, index: int) -> Any:
        """The next trial of a study: a point that is to be tried first, or the sampler's choice."""
        if index < len(self._searcher.get("first") or ()):
            point = self._samples.plan(index).hparams
            study.enqueue_trial(to_params(self._space, point))
        return self._asked_of(study)

    def _asked_of(self, study: Any) -> Any:
        """A new trial with all its parameters: of each choice those that its val holds."""
        trial = study.ask()
        sample_of(self._space, suggest_by(trial))
        return trial

    def _tell(self, study: Any, trial: Any, known: KnownTrial) -> None:
        states = self._optuna.trial.TrialState
        if len(self._objectives.metrics) == 1:  # else Optuna has no intermediate values
            for at, metric in known.reports:
                trial.report(_number(metric), at)
        for name, excess in self._excesses(known).items():
            trial.set_constraint(name, excess)
        if known.state == "complete" and known.reports:
            study.tell(trial, self._values(known))
        else:
            study.tell(trial, state=states.PRUNED if known.state == "pruned" else states.FAIL)

    def _frozen(self, known: KnownTrial) -> Any:
        states = self._optuna.trial.TrialState
        state = {
            "running": states.RUNNING,
            "complete": states.COMPLETE if known.reports else states.FAIL,
            "pruned": states.PRUNED,
            "failed": states.FAIL,
        }[known.state]
        judged = known.state in ("complete", "pruned") and known.reports
        params = to_params(self._space, known.hparams)
        shared = self._distributions(params, known.hparams)
        frozen = self._optuna.trial.create_trial(
            state=state,
            values=self._values(known) if judged else None,
            params=params,
            distributions=shared,
            intermediate_values={at: _number(metric) for at, metric in known.reports},
            system_attrs=dict(known.notes),
        )
        for name, excess in self._excesses(known).items():
            frozen.set_constraint(name, excess)
        frozen.distributions = shared
        return frozen

    def _distributions(self, params: Mapping[str, Any], hparams: Mapping[str, Any]) -> _Shared:
        """Those of the trials with these parameters, which are theirs by their names."""
        names = tuple(params)
        if names not in self._shared:
            self._shared[names] = _Shared(distributions(self._space, dict(hparams)))
        return self._shared[names]

    def _values(self, known: KnownTrial) -> list[float]:
        """The result of a trial: its last report. If a metric is no number, all are the worst."""
        metrics = self._objectives.metrics
        reported = {metrics[0].name: known.reports[-1][1], **known.metrics}
        values = [finite(reported.get(one.name)) for one in metrics]
        numbers = [value for value in values if value is not None]
        if len(numbers) == len(metrics):
            return numbers
        return [math.inf if one.smaller_is_better else -math.inf for one in metrics]

    def _excesses(self, known: KnownTrial) -> dict[str, float]:
        """By how much a trial breaks the constraints, once it has reported."""
        if not known.reports:
            return {}
        name = self._objectives.metrics[0].name
        return self._objectives.excesses({name: known.reports[-1][1], **known.metrics})

    # -- samplers and pruners --------------------------------------------------------------------

    @property
    def _kind(self) -> str:
        return str(self._searcher.get("sampler", "tpe"))

    def _sampler(self, earlier: Sequence[KnownTrial]) -> Any:
        _refuse_missing(self._kind)
        given = {"seed": self._seed, **(self._searcher.get("sampler_args") or {})}
        if self._kind == "cmaes" and earlier:
            given["source_trials"] = self._sources(earlier)
        made = getattr(self._optuna.samplers, SAMPLERS[self._kind])
        return _made(made, given, "searcher.sampler_args")

    def _sources(self, earlier: Sequence[KnownTrial]) -> list[Any]:
        """Earlier results as CMA-ES begins with them: whole trials, by their numbers alone."""
        from optuna.distributions import CategoricalDistribution

        numbers = {
            name: kind
            for name, kind in distributions(self._space, earlier[0].hparams).items()
            if not (isinstance(kind, CategoricalDistribution) or kind.single())
        }
        whole = [self._frozen(known) for known in earlier if known.state == "complete"]
        if len(whole) < _SOURCES:
            raise BridgeError(
                f"searcher.prior_experiments: cmaes needs {_SOURCES} results or more of"
                f" trials that were not ended early, found {len(whole)}: name more experiments, or"
                " use the sampler tpe"
            )
        return [
            self._optuna.trial.create_trial(
                value=trial.value,
                params={name: trial.params[name] for name in numbers},
                distributions=numbers,
            )
            for trial in whole
        ]

    def _model(self, index: int) -> Any:
        from numpy.random import SeedSequence

        _refuse_missing(self._kind)
        (seed,) = SeedSequence([self._seed, index]).generate_state(1)
        return getattr(self._optuna.samplers, SAMPLERS[self._kind])(
            seed=int(seed), n_startup_trials=1, **_MODEL_ARGUMENTS[self._kind]
        )

    def _pruner(self) -> Any:
        name = self._searcher.get("pruner") or "nop"
        return self._pruner_of(name, self._searcher.get("pruner_args") or {})

    def _pruner_of(self, name: str, given: Mapping[str, Any]) -> Any:
        _refuse_missing(name)
        args = dict(given)
        inner = args.get("wrapped_pruner")
        if isinstance(inner, str):
            args["wrapped_pruner"] = self._pruner_of(inner, args.pop("wrapped_args", None) or {})
        return _made(getattr(self._optuna.pruners, PRUNERS[name]), args, "searcher.pruner_args")


class _Shared(dict[str, Any]):
    """Distributions that trials share: copies would take most of a study's time."""

    def __deepcopy__(self, memo: Any) -> _Shared:
        return self


def _refuse_missing(name: str) -> None:
    missing = [package for package in _PACKAGES.get(name, ()) if find_spec(package) is None]
    if missing:
        raise BridgeError(f"Optuna's {name} lacks a package: pip install {' '.join(missing)}")


def _made(kind: Any, given: Mapping[str, Any], where: str) -> Any:
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise BridgeError(f"{where}: Optuna's {kind.__name__} refuses them: {error}") from error
    except ImportError as error:
        raise BridgeError(f"Optuna's {kind.__name__} lacks a package: {error}") from error


def _with_report(history: TrialHistory, index: int, at: int, metric: float | None) -> TrialHistory:
    known = history.trials[index]
    reported = msgspec.structs.replace(known, reports=[*known.reports, (at, metric)])
    return msgspec.structs.replace(history, trials={**history.trials, index: reported})


def _number(metric: float | None) -> float:
    return math.nan if metric is None else float(metric)


def _quiet_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise BridgeError(
            f"the optuna searcher needs Optuna ({error}): pip install 'detslurm[optuna]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
