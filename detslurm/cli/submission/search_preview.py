"""`detslurm preview-search` and `detslurm simulate`: what a search will do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import yaml

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import client, experiment_of
from detslurm.cli.arguments.seconds import Seconds
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import Document, describes, human_time, number, table
from detslurm.cli.submission import config_options
from detslurm.cli.submission.cost import cost_rows
from detslurm.sdk.costs.cost import Cost, Figure
from detslurm.sdk.costs.evidence import cost_of_config
from detslurm.sdk.parts import (
    LoadedExperiment,
    Preview,
    Row,
    Simulation,
    load_experiment,
    load_site,
)
from detslurm.sdk.searches import preview as search_preview
from detslurm.sdk.submission.first_points import with_named_trials


@click.command("preview-search")
@config_options.config_file
@config_options.overrides
@config_options.template
@describes
def preview_search(config_file: str, overrides: tuple[str, ...], template: str | None) -> Document:
    """Show how many trials the search in CONFIG trains, for how long, and what that costs.

    It counts trials as if none of them fails. Nothing is queued.

    \b
    Examples:
      detslurm preview-search experiment.yaml
      detslurm preview-search experiment.yaml --config searcher.max_trials=50
    """
    loaded = _loaded(config_file, overrides, template)
    preview = _explained(lambda: search_preview.preview_search(loaded.config.to_dict()))
    cost = cost_of_config(client(), loaded.config)

    def text() -> str:
        searcher = loaded.given.get("searcher") or loaded.config.to_dict()["searcher"]
        shown = f"{_searcher_text(searcher)}\n{_preview_text(preview)}"
        return f"{shown}\n\n{_cost_text(cost)}"

    return Document(text, lambda: {**preview.to_dict(), "cost": cost.to_dict()})


@click.command()
@config_options.config_file
@config_options.overrides
@config_options.template
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Simulate N slots. By default resources.max_slots, or as many as the search can use.",
)
@click.option(
    "--curves",
    "curves_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Read learning curves: CSV (trial, units, metric), or JSON (lists of [units, metric]).",
)
@click.option(
    "--experiment",
    "source",
    metavar="ID",
    shell_complete=completed_by("experiments"),
    help="Use the learning curves of this experiment.",
)
@click.option(
    "--unit-seconds",
    type=Seconds(min_open=True),
    help="Take this many seconds for one unit of training. By default that of earlier runs, or 1.",
)
@click.option(
    "--start-seconds",
    type=Seconds(),
    default=0.0,
    show_default=True,
    help="Take this many seconds to start or resume a trial.",
)
@click.option(
    "--units",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    help="Train trials for N units where the configuration sets no length.",
)
@describes
def simulate(
    config_file: str,
    overrides: tuple[str, ...],
    template: str | None,
    slots: int | None,
    curves_file: Path | None,
    source: str | None,
    unit_seconds: float | None,
    **settings: Any,
) -> Document:
    """Simulate the search in CONFIG in virtual time: no job is queued, nothing is trained.

    Without --curves or --experiment, synthetic learning curves are used: the metric of a trial
    falls (rises, if larger is better) as a power law of its units, and its seed determines limit
    and rate.

    \b
    Examples:
      detslurm simulate experiment.yaml --slots 16 --unit-seconds 30
      detslurm simulate experiment.yaml --experiment 7
    """
    if curves_file is not None and source is not None:
        raise click.UsageError("--curves can't be combined with --experiment")
    loaded = _loaded(config_file, overrides, template)
    config = loaded.config.to_dict()
    curves = _explained(lambda: _curves(curves_file, source, config))
    cost = cost_of_config(client(), loaded.config)
    unit = cost.unit_seconds if unit_seconds is None else Figure(unit_seconds, "--unit-seconds")
    settings["unit_seconds"] = unit.value or 1.0
    result = _explained(
        lambda: search_preview.simulate_search(config, slots=slots, curves=curves, **settings)
    )

    def text() -> str:
        shown = _simulation_text(result, int(config["resources"]["slots_per_trial"] or 1))
        shown = f"{shown}\n unit time: {_unit_text(unit)}\n\nCost:\n{_cost_text(cost)}"
        if all(row.units is not None for row in search_preview.preview_search(config).rows):
            return shown
        return (
            f"{shown}\n\nThe configuration sets no length: each trial was assumed to train for"
            f" {settings['units']:,} units (--units)."
        )

    return Document(text, lambda: {**result.to_dict(), "cost": cost.to_dict()})


def _unit_text(unit: Figure) -> str:
    if unit.value is None:
        return f"1 s, assumed: {unit.source}"
    return f"{unit.value:.3g} s: {unit.source}"


def _cost_text(cost: Cost) -> str:
    return "\n".join(f"{name:>10}: {value}" for name, value in cost_rows(cost))


def _loaded(config_file: str, overrides: tuple[str, ...], template: str | None) -> LoadedExperiment:
    loaded = load_experiment(config_file, overrides=overrides, template=template, site=load_site())
    return with_named_trials(loaded, client().store)


def _curves(
    path: Path | None, source: str | None, config: dict[str, Any]
) -> search_preview.RecordedCurves | None:
    if path is not None:
        return search_preview.read_curves(path)
    if source is None:
        return None
    return search_preview.recorded_curves(client().experiment(experiment_of(source)), config)


def _explained(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except search_preview.PreviewError as error:
        raise click.UsageError(str(error)) from None


def _searcher_text(searcher: dict[str, Any]) -> str:
    text = yaml.safe_dump(searcher, sort_keys=False, allow_unicode=True)
    return "Using search configuration:\n" + "".join(f"  {line}\n" for line in text.splitlines())


def _preview_text(preview: Preview) -> str:
    if preview.trials is None:
        return "A custom search has no preview: its method decides while it runs."
    parts = [table(["Trials", "Training Time"], _training(preview.rows, preview.unit))]
    if preview.brackets:
        rows = [
            [n, b.trials, b.concurrency, ", ".join(map(str, b.rungs))]
            for n, b in enumerate(preview.brackets)
        ]
        parts.append(table(["Bracket", "Trials", "At Once", "Rungs"], rows))
    total = "" if preview.total_units is None else f", {_units(preview.total_units, preview.unit)}"
    most = "at most " if preview.may_end_early else ""
    parts.append(f"{most}{counted(preview.trials, 'trial')}{total}; {preview.concurrency} at once")
    return "\n\n".join(parts)


def _simulation_text(result: Simulation, slots_per_trial: int) -> str:
    counts = Counter((trial.bracket, trial.units) for trial in result.each)
    several = len({bracket for bracket, _ in counts}) > 1
    rows = [[counts[b, n], _train(n, result.unit), *([b] * several)] for b, n in sorted(counts)]
    shown = table(["Trials", "Training Time", *(["Bracket"] * several)], rows)
    slots = result.workers * slots_per_trial
    on = counted(slots, "slot")
    lines = {
        "trials": result.trials,
        "total": _units(result.total_units, result.unit),
        "makespan": f"{human_time(result.seconds)} on {on}, {result.busy:.0%} busy",
        "slot hours": f"{result.seconds * slots / 3600:,.2f}",
    }
    if result.best is not None:
        best = result.best
        metric = number(best.metric)
        lines["best"] = f"trial {best.trial}: {metric} after {_units(best.units, result.unit)}"
    if result.front:
        lines["front"] = f"trials {', '.join(map(str, result.front))}"
    if result.end_reason is not None:
        lines["ended by"] = result.end_reason
    return "\n".join([shown, "", *(f"{name:>10}: {value}" for name, value in lines.items())])


def _training(rows: list[Row], unit: str | None) -> list[list[Any]]:
    return [
        [row.trials, "train to completion" if row.units is None else _train(row.units, unit)]
        for row in rows
    ]


def _train(units: int, unit: str | None) -> str:
    return f"train for {_units(units, unit)}"


def _units(units: int, unit: str | None) -> str:
    return f"{units:,} {unit or 'units'}"
