"""`detslurm experiment plot`."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import any_trials, client, experiment_id
from detslurm.cli.output.human import has_blocks, on_terminal
from detslurm.cli.output.printing import Column, Table, UserData, shows, warn
from detslurm.cli.output.tables import printable
from detslurm.sdk.errors import LifecycleError

if TYPE_CHECKING:
    from detslurm.look.canvas import TextSpan
    from detslurm.look.trial_curves import ExperimentCurves
    from detslurm.sdk.experiments.experiment import Experiment

_WIDTH = 80
_HEIGHT = 20


class _Point(NamedTuple):
    """A row of the CSV."""

    trial: int
    steps: int
    value: float


@click.command()
@experiment_id
@click.argument("metric", required=False)
@any_trials("Show this trial, not the best ones. Repeatable.")
@click.option(
    "--trials",
    "limit",
    type=click.IntRange(1, 26),
    default=5,
    show_default=True,
    metavar="N",
    help="Show the N best trials by the searcher's metric.",
)
@click.option(
    "--group",
    metavar="GROUP",
    help='Take the metric from this group, such as "training"; by default from "validation" '
    "where it is there.",
)
@click.option("--log", is_flag=True, help="Show the values on a logarithmic axis.")
@click.option(
    "--width",
    type=click.IntRange(40, 1000),
    metavar="CELLS",
    help="Set the width; by default that of the terminal, elsewhere 80.",
)
@click.option(
    "--height",
    type=click.IntRange(6, 1000),
    metavar="LINES",
    help="Set the height without title and legend; by default what the terminal has, or 20.",
)
@shows
def plot(
    experiment_id: int,
    metric: str | None,
    trials: Sequence[int],
    limit: int,
    group: str | None,
    log: bool,
    width: int | None,
    height: int | None,
) -> Table:
    """Plot learning curves of an experiment's best trials as text.

    METRIC is the searcher's by default. Each curve ends in its letter of the legend; a diamond (or
    ^) marks where the trial was resumed. --table prints the points in place of the plot, as --csv
    and --json do.

    \b
    Examples:
      detslurm experiment plot 7
      detslurm experiment plot 7 loss --group training --log
      detslurm experiment plot 7 -t 12 -t 15 --csv > curves.csv
    """
    from detslurm.look.trial_curves import curves_of

    experiment = client().stored(experiment_id)
    found = curves_of(experiment, metric, group=group, trials=trials, limit=limit)
    columns = [
        Column("Trial ID", lambda point: point.trial, csv_header="trial"),
        Column("# of Batches", lambda point: point.steps, csv_header="steps"),
        Column(found.metric.name, lambda point: point.value),
    ]
    return Table(
        columns,
        list(_points(found)),
        lambda: _data(experiment, found),
        text=lambda: _text(experiment, found, log, width, height),
    )


def _points(found: ExperimentCurves) -> Iterator[_Point]:
    for curve in found.curves:
        for steps, value in zip(curve.line.xs, curve.line.ys, strict=True):
            if not math.isnan(value):
                yield _Point(curve.trial.id, int(steps), float(value))


def _data(experiment: Experiment, found: ExperimentCurves) -> dict[str, Any]:
    return {
        "experiment": experiment.id,
        "group": found.metric.group,
        "metric": found.metric.name,
        "trials": [
            {
                "id": curve.trial.id,
                "state": curve.trial.row.state,
                "hparams": UserData(curve.trial.hparams),
                "resumed_steps": list(curve.line.marks),
                "steps": [int(steps) for steps in curve.line.xs],
                "values": [float(value) for value in curve.line.ys],
            }
            for curve in found.curves
        ],
    }


# -- text --------------------------------------------------------------------------------------


def _text(
    experiment: Experiment,
    found: ExperimentCurves,
    log: bool,
    width: int | None,
    height: int | None,
) -> str:
    """The plot between its title and its legend; all of it fits on the terminal."""
    from detslurm.look.plot import LEAST_WIDTH, PlotFormat, draw

    screen = shutil.get_terminal_size((_WIDTH, _HEIGHT))
    if width is None:
        width = max(screen.columns, LEAST_WIDTH)
    if height is None:
        others = len(found.curves) + 3  # title, legend, and the line of the prompt
        height = min(max(screen.lines - others, 8), 40) if on_terminal() else _HEIGHT
    form = PlotFormat(width, height, log=log, braille=has_blocks())
    rows = draw([curve.line for curve in found.curves], form)
    if not rows:
        why = "is positive, as --log needs" if log else "is a finite number"
        raise LifecycleError(f"no value of {found.metric.name!r} {why}")
    _warn_of_gaps(found, log)
    legend = _legend(experiment, found, width)
    return "\n".join([_title(experiment, found, width), *map(_line, rows), *legend])


def _title(experiment: Experiment, found: ExperimentCurves, width: int) -> str:
    shown, all_trials = len(found.curves), counted(found.begun, "trial")
    which = f"{shown} of {all_trials}" if shown < found.begun else all_trials
    name = f"{found.metric.group} {found.metric.name}"
    text = f"{name} by steps: experiment {experiment.id} {experiment.name}, {which}"
    return printable(text)[:width]


def _legend(experiment: Experiment, found: ExperimentCurves, width: int) -> Iterator[str]:
    from detslurm.look.canvas import letter
    from detslurm.look.trial_curves import legend

    rows = [curve.trial.row for curve in found.curves]
    searched = found.metric == ("validation", experiment.row.metric)
    texts = legend(rows, [curve.line for curve in found.curves], searched=searched)
    for place, text in enumerate(texts):
        yield _colored(letter(place), place) + printable(f" {text}")[: width - 1].rstrip()


def _warn_of_gaps(found: ExperimentCurves, log: bool) -> None:
    """Warn of values that the plot can't show; NaN also stands for other metrics' steps."""
    values = [value for curve in found.curves for value in curve.line.ys]
    hidden = sum(math.isinf(value) or (log and value <= 0) for value in values)
    if hidden:
        kind = "infinite or not positive" if log else "infinite"
        warn(f"{hidden} of {len(values)} values are {kind} and left out")


def _line(row: Sequence[TextSpan]) -> str:
    return "".join(_colored(text, series) for text, series in row).rstrip()


def _colored(text: str, series: int | None) -> str:
    from detslurm.look.plot import COLORS

    if series is None or not on_terminal() or "NO_COLOR" in os.environ:
        return text
    return click.style(text, fg=COLORS[series % len(COLORS)])
