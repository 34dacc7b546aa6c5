"""Shows a search before a node hour is spent: its preview, and whole simulations."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from msgspec import structs

from detslurm.sdk.submission.planning import trials_and_jobs
from detslurm.searcher import Search
from detslurm.searcher.curves import Curves, Recorded, Synthetic
from detslurm.searcher.preview import Preview, preview
from detslurm.searcher.simulation import Simulation, simulate

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment

RecordedCurves = Sequence[Sequence[tuple[int, float]]]
_COLUMNS = ("trial", "units", "metric")


class PreviewError(ValueError):
    """A search can't be previewed or simulated; the message has the reason."""


def preview_search(config: Mapping[str, Any]) -> Preview:
    """How many trials of a configuration train how far without failures. Raises `PreviewError`."""
    return structs.replace(preview(config), concurrency=worker_count(config, None))


def simulate_search(
    config: Mapping[str, Any],
    *,
    slots: int | None = None,
    curves: RecordedCurves | None = None,
    unit_seconds: float = 1.0,
    start_seconds: float = 0.0,
    units: int = 100,
) -> Simulation:
    """Run the search of a resolved configuration in virtual time, on `slots` slots (by default as
    many as it can use), with recorded or synthetic curves; trials train `units` by default."""
    if config["searcher"]["name"] == "custom":
        raise PreviewError("a custom search has no preview: its method decides while it runs")
    made: Curves
    if curves is None:
        smaller = config["searcher"].get("smaller_is_better", True)
        made = Synthetic(smaller, unit_seconds=unit_seconds)
    elif len(config["searcher"].get("metrics", ())) > 1:
        raise PreviewError(
            "learning curves have one metric, and this search compares by several: simulate it"
            " without them"
        )
    else:
        made = Recorded(curves, unit_seconds=unit_seconds)
    workers = worker_count(config, slots)
    return simulate(config, workers, made, units=units, start_seconds=start_seconds)


def worker_count(config: Mapping[str, Any], slots: int | None) -> int:
    """How many trials run at once on `slots` slots. Raises `PreviewError` where none can."""
    resources = config.get("resources") or {}
    each = resources.get("slots_per_trial") or 1
    bounds = [bound for bound in (slots, resources.get("max_slots")) if bound is not None]
    _, elements = trials_and_jobs(config, submit_from_jobs=True)
    most = min(preview(config).concurrency, elements)
    if not bounds:
        return most
    if min(bounds) < each:
        raise PreviewError(f"a limit of {min(bounds)} is less than one trial needs ({each})")
    return min(most, min(bounds) // each)


def read_curves(path: Path) -> RecordedCurves:
    """Learning curves from a file: CSV with columns trial, units and metric, or JSON, which is a
    list of curves, or curves by trial. A curve is a list of [units, metric]."""
    try:
        if path.suffix.lower() == ".json":
            return _from_json(json.loads(path.read_text()))
        with path.open(newline="") as file:
            return _from_table(csv.DictReader(file))
    except (ValueError, TypeError, OverflowError, csv.Error) as error:
        raise PreviewError(f"{path}: {error}") from None


def _from_json(data: Any) -> RecordedCurves:
    curves = list(data.values()) if isinstance(data, dict) else data
    if not isinstance(curves, list) or not all(isinstance(curve, list) for curve in curves):
        raise PreviewError("expected a list of curves, each a list of [units, metric]")
    return _checked([[_point(*point) for point in curve] for curve in curves])


def _from_table(rows: csv.DictReader[str]) -> RecordedCurves:
    missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise PreviewError(f"no column {', '.join(missing)}; expected {', '.join(_COLUMNS)}")
    curves: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        curves.setdefault(row["trial"], []).append(_point(row["units"], row["metric"]))
    return _checked(list(curves.values()))


def recorded_curves(experiment: Experiment, config: Mapping[str, Any]) -> RecordedCurves:
    """The validation curves of an experiment's trials by the metric and the units of the search of
    `config`. Raises `PreviewError` where the validations lack either."""
    search = Search(config)
    metric, unit = search.metric, search.time_metric or search.unit
    curves: list[list[tuple[int, float]]] = []
    lacking = False
    for trial in experiment.trials():
        points: dict[int, float] = {}
        for row in trial.metric_rows("validation") if trial.row.run_count else ():
            value = row.metrics.get(metric)
            at = row.metrics.get(unit) if unit is not None else row.steps
            if at is None and unit == "batches":
                at = row.steps
            if isinstance(value, int | float) and _is_place(at):
                points.setdefault(int(at), float(value))  # what a search sees when it arrives
            lacking |= value is not None and at is None
        if points:
            curves.append(list(points.items()))
    if not curves and lacking:
        raise PreviewError(
            f"the validations of experiment {experiment.id} don't report {unit!r}: let the search"
            " count what they report (batches always are), or give it learning curves with --curves"
        )
    if not curves:
        raise PreviewError(f"experiment {experiment.id} has no validations with {metric!r}")
    return curves


def _is_place(at: Any) -> TypeGuard[int | float]:
    return isinstance(at, int | float) and math.isfinite(at)


def _point(units: Any, metric: Any) -> tuple[int, float]:
    at = float(units)
    if not math.isfinite(at) or at < 0:
        raise PreviewError(f"units are a number from 0, not {units!r}")
    return int(at), float(metric)


def _checked(curves: Sequence[Sequence[tuple[int, float]]]) -> RecordedCurves:
    kept = [curve for curve in curves if curve]
    if not kept:
        raise PreviewError("no curve in it")
    return kept
