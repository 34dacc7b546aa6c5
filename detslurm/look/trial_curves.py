"""The curves of an experiment that a plot shows: the metric, and the best trials."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from detslurm._base.quantities import number
from detslurm.look.plot import Line
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.ordering import best_trials_first, differing
from detslurm.store import TrialRow, flat, in_lists, is_number, metric_columns, trial_metrics

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.trials.trial import Trial

_FIRST = ("validation", "training")


class MetricName(NamedTuple):
    """A metric, by the group of its reports and its name, dotted if it is nested."""

    group: str
    name: str


class TrialCurve(NamedTuple):
    """One metric of one trial on the clean curve, by steps; NaN where it was not reported."""

    trial: Trial
    line: Line


class ExperimentCurves(NamedTuple):
    """The curves of one metric, best trial first; `begun` counts the trials of the experiment."""

    metric: MetricName
    curves: list[TrialCurve]
    begun: int


def legend(rows: Sequence[TrialRow], lines: Sequence[Line], *, searched: bool) -> list[str]:
    """A line for each curve: trial, state, last value, best value (if `searched`: of the searcher's
    metric), and its distinction."""
    names, _ = differing(row.hparams for row in rows)
    return [_legend_line(row, line, names, searched) for row, line in zip(rows, lines, strict=True)]


def _legend_line(row: TrialRow, line: Line, names: Sequence[str], searched: bool) -> str:
    points = [(int(at), float(value)) for at, value in zip(line.xs, line.ys, strict=True)]
    steps, value = next((p for p in reversed(points) if not math.isnan(p[1])), points[-1])
    best = row.best_validation if searched else None
    shown = f"{_text_of(value)} @ {steps}"
    if best is not None and best.value is not None and best.steps != steps:
        shown += f", best {_text_of(best.value)} @ {best.steps}"
    hparams = dict(flat(row.hparams or {}))
    told = ", ".join(f"{name}={_text_of(hparams.get(name))}" for name in names if name in hparams)
    return f"trial {row.id}  {row.state}  {shown}  {told}".rstrip()


def _text_of(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=str, separators=(",", ":"))
    return number(value)


def curves_of(
    experiment: Experiment,
    metric: str | None = None,
    *,
    group: str | None = None,
    trials: Collection[int] = (),
    limit: int = 5,
) -> ExperimentCurves:
    """Return the curves of these trials, by default of the `limit` best by the searcher's metric.

    The `metric` is the searcher's by default; its `group` the first of "validation", "training" and
    others that has it. Raises `LifecycleError`, which names what there is, without such a metric or
    trial; `StoreFault` if a file of a trial can't be read.
    """
    begun = [trial for trial in experiment.trials() if trial.row.run_count]
    chosen = _named(experiment, begun, trials) if trials else _best_first(experiment, begun)[:limit]
    name = metric or experiment.row.metric
    if not chosen:
        raise LifecycleError(f"no trial of experiment {experiment.id} has begun: nothing to plot")
    if name is None:
        raise LifecycleError(
            f"experiment {experiment.id} has no searcher's metric: name one. {_known(chosen)}"
        )
    for found in _groups(chosen, group):
        if curves := [curve for trial in chosen if (curve := _curve(trial, found, name))]:
            if all(math.isnan(value) for curve in curves for value in curve.line.ys):
                raise LifecycleError(f"nothing but NaN was reported as {name!r} in group {found!r}")
            return ExperimentCurves(MetricName(found, name), curves, len(begun))
    of_group = f" in the group {group!r}" if group else ""
    raise LifecycleError(f"no trial shown has reported {name!r}{of_group}. {_known(chosen)}")


def _best_first(experiment: Experiment, trials: Sequence[Trial]) -> list[Trial]:
    known = {trial.id: trial for trial in trials}
    rows = (trial.row for trial in trials)
    better = best_trials_first(rows, experiment.row)
    return [known[row.id] for row in better]


def _named(experiment: Experiment, begun: Iterable[Trial], ids: Collection[int]) -> list[Trial]:
    known = {trial.id: trial for trial in begun}
    for trial in ids:
        if trial not in known:
            has = ", ".join(map(str, known)) or "none"
            raise LifecycleError(
                f"trial {trial} of experiment {experiment.id} has not begun; these have: {has}"
            )
    return [known[trial] for trial in ids]


def _groups(trials: Iterable[Trial], group: str | None) -> Iterator[str]:
    """The groups to search for a metric; others than the usual ones only when it is not there."""
    if group is not None:
        yield group
        return
    yield from _FIRST
    others = {row.group for trial in trials for row in trial.metric_rows()}
    yield from sorted(others - {*_FIRST})


def _curve(trial: Trial, group: str, name: str) -> TrialCurve | None:
    columns = in_lists(metric_columns(trial.directory, group, [name]))
    steps, values = columns.steps, columns.metrics.get(name)
    if values is None:
        return None
    if any(map(math.isnan, values)):  # reported as such, or a report of other metrics
        reported = _steps_of(trial, group, name)
        pairs = [pair for pair in zip(steps, values, strict=True) if pair[0] in reported]
        steps, values = [step for step, _ in pairs], [value for _, value in pairs]
    if not len(steps):
        return None
    resumes = [run.resumed_steps for run in trial.view.runs[1:] if run.resumed_steps]
    shown = [step for step in resumes if steps[0] <= step <= steps[-1]]
    return TrialCurve(trial, Line(steps, values, shown))


def _steps_of(trial: Trial, group: str, name: str) -> set[int]:
    rows = trial_metrics(trial.directory, group)
    return {row.steps for row in rows if any(key == name for key, _ in flat(row.metrics))}


def _known(trials: Iterable[Trial]) -> str:
    """The metrics that there are, by group."""
    found: dict[str, set[str]] = {}
    for trial in trials:
        for row in trial.metric_rows():
            names = (name for name, value in flat(row.metrics) if is_number(value))
            found.setdefault(row.group, set()).update(names)
    parts = (f"{group} has {', '.join(sorted(names))}" for group, names in sorted(found.items()))
    return "; ".join(parts) or "Nothing has been reported so far"
