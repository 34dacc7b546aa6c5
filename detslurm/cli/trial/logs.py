"""Commands that show logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, experiment_id, together, trial_id
from detslurm.cli.checkpoint.arguments import Quantity
from detslurm.cli.output.human import on_terminal
from detslurm.cli.output.printing import json_line, note
from detslurm.cli.output.tables import log_line
from detslurm.sdk.experiments import polling
from detslurm.sdk.trials.log_lines import Filter, bound, log_level

if TYPE_CHECKING:
    from detslurm.sdk.trials.log_lines import LogLine
    from detslurm.sdk.trials.trial import Trial


def _stamp(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        return bound(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _since(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The moment so long ago, or the moment that was given."""
    import time

    if value is None or not re.fullmatch(r"\d[\d.]*\s*[a-z]+", value.strip()):
        return _stamp(ctx, param, value)
    # Of logs m is minutes, as in other tools; deletions by age refuse it, for it could be months.
    text = re.sub(r"(?<=[\d\s])m$", "min", value.strip())
    age: float = Quantity("age").convert(text, param, ctx)
    return _stamp(ctx, param, str(time.time() - age))


def _absent(name: str, why: str) -> Callable[..., Any]:
    """An option of `det` without a meaning here: given, it prints so."""

    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value:
            raise click.BadParameter(why, param_hint=name)

    return click.option(
        name,
        multiple=True,
        hidden=True,
        expose_value=False,
        callback=refuse,
        help=f"Print nothing: {why}.",
    )


log_options = together(
    click.option(
        "-f",
        "--follow",
        is_flag=True,
        help="Print new lines until the trial has ended, across requeues and restarts.",
    ),
    click.option(
        "--head", type=click.IntRange(min=0), metavar="N", help="Print the first N lines."
    ),
    click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Print the last N lines."),
    click.option(
        "--rank-id",
        "rank_ids",
        type=click.IntRange(min=0),
        multiple=True,
        metavar="R",
        help="Print only lines of rank R. Repeatable.",
    ),
    click.option(
        "--level",
        type=click.Choice(["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], False),
        help="Print only lines of this level or higher. A line without a level is INFO.",
    ),
    click.option(
        "--source",
        "sources",
        type=click.Choice(["code", "detslurm"]),
        multiple=True,
        help="Print only lines of the experiment's code, or detslurm's lines about it.",
    ),
    click.option("--search", metavar="TEXT", help="Print only lines that contain TEXT."),
    click.option(
        "--timestamp-before",
        "before",
        metavar="TIME",
        callback=_stamp,
        help="Print only lines before TIME (RFC 3339, or seconds since 1970).",
    ),
    click.option(
        "--timestamp-after",
        "after",
        metavar="TIME",
        callback=_stamp,
        help="Print only lines after TIME.",
    ),
    click.option(
        "--since",
        metavar="AGE",
        callback=_since,
        help="Print only lines of the last 10m, 2h or 1d, or after a TIME.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object."),
    _absent("--stdtype", "both outputs of a process are one stream here"),
    _absent("--container-id", "lines have no container here: --rank-id chooses a process"),
    _absent("--agent-id", "lines name no node here: --rank-id chooses a process"),
)
"""The options of `show_log`."""


@click.command()
@experiment_id
@log_options
def experiment_logs(experiment_id: int, **options: Any) -> None:
    """Print the log of an experiment's first trial; `detslurm trial logs` prints that of any.

    \b
    Examples:
      detslurm experiment logs 7 --tail 50
      detslurm experiment logs 7 --follow
    """
    show_log(client().stored(experiment_id).first_trial(), **options)


@click.command()
@trial_id
@log_options
def trial_logs(trial_id: int, **options: Any) -> None:
    """Print the log of a trial: the lines of all ranks in all of its runs.

    \b
    Examples:
      detslurm trial logs 12 --follow
      detslurm trial logs 12 --tail 100 --rank-id 0
      detslurm trial logs 12 --level WARNING --search loss
      detslurm trial logs 12 --since 10m
      detslurm trial logs 12 --timestamp-after 2026-11-21T04:46:03Z
    """
    show_log(client().stored_trial(trial_id), **options)


def show_log(
    trial: Trial,
    *,
    follow: bool,
    head: int | None,
    tail: int | None,
    rank_ids: tuple[int, ...],
    level: str | None,
    sources: tuple[str, ...],
    search: str | None,
    before: str | None,
    after: str | None,
    since: str | None,
    as_json: bool,
) -> None:
    """Print the log of a trial as `log_options` ask for it."""
    if head is not None and (tail is not None or follow):
        raise click.UsageError("--head can't be combined with --tail or --follow")
    after = max(filter(None, (after, since)), default=None)
    wanted = Filter(
        frozenset(rank_ids), before, after, search, log_level(level), frozenset(sources)
    )
    if follow or trial.row.run_count == 0:
        trial.reload()  # the queue knows why nothing comes
    lines: Iterable[LogLine]
    if follow:
        lines = polling.follow_logs(trial, wanted, tail_count=tail, report=note)
    else:
        lines = trial._lines(wanted, follow, head, tail)
    show(lines, as_json=as_json)
    if trial.state == "ERROR" or (trial.row.run_count == 0 and not follow):
        note(_why_no_more(trial))
    if follow:
        note(f"Trial log stream ended. To reopen log stream, run: detslurm t logs -f {trial.id}")


def show(lines: Iterable[LogLine], *, as_json: bool = False) -> None:
    """Print log lines as they come; a terminal gets nothing that it would obey, but for colours."""
    terminal = on_terminal()
    for line in lines:
        if as_json:
            fields = {"time": line.time, "run": line.run, "rank": line.rank, "text": line.text}
            json_line(fields)
        else:
            click.echo(log_line(line.raw) if terminal else line.raw)


def _why_no_more(trial: Trial) -> str:
    text = f"trial {trial.id} is {trial.state}"
    if trial.row.run_count == 0:
        text += " and never ran" if trial.state == "ERROR" else " and has not run yet"
    return f"{text}: {trial.reason}" if trial.reason else text
