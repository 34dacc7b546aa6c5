"""Commands that show logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.ids import client, experiment_id, trial_id
from detslurm.cli.output import json_line, note

if TYPE_CHECKING:
    from detslurm.sdk.logs import Filter, LogLine
    from detslurm.sdk.trial import Trial


def _stamp(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    from detslurm.sdk.logs import timestamp

    try:
        return timestamp(value)
    except (ValueError, OverflowError) as error:
        text = f"{value!r} is neither RFC 3339 (2026-11-21T04:46:03Z) nor seconds since 1970"
        raise click.BadParameter(text) from error


_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "-f",
        "--follow",
        is_flag=True,
        help="Stay until the trial is over, across requeues and restarts.",
    ),
    click.option("--head", type=click.IntRange(min=0), metavar="N", help="The first N lines."),
    click.option("--tail", type=click.IntRange(min=0), metavar="N", help="The last N lines."),
    click.option(
        "--rank-id",
        "rank_ids",
        type=click.IntRange(min=0),
        multiple=True,
        metavar="R",
        help="Lines of this rank only. Repeatable.",
    ),
    click.option(
        "--timestamp-before",
        "before",
        metavar="TIME",
        callback=_stamp,
        help="Lines before TIME (RFC 3339, or seconds since 1970).",
    ),
    click.option(
        "--timestamp-after", "after", metavar="TIME", callback=_stamp, help="Lines after TIME."
    ),
    click.option("--json", "as_json", is_flag=True, help="One JSON object a line."),
)


def _log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@experiment_id
@_log_options
def experiment_logs(experiment_id: int, **options: Any) -> None:
    """Show the log of the experiment's first trial (`trial logs` shows any other's)."""
    _show(client().stored(experiment_id).first_trial(), **options)


@click.command()
@trial_id
@_log_options
def trial_logs(trial_id: int, **options: Any) -> None:
    """Show a trial's log: every line of every rank in all of its runs."""
    _show(client().stored_trial(trial_id), **options)


def _show(
    trial: Trial,
    *,
    follow: bool,
    head: int | None,
    tail: int | None,
    rank_ids: tuple[int, ...],
    before: str | None,
    after: str | None,
    as_json: bool,
) -> None:
    from detslurm.sdk.logs import Filter

    if head is not None and (tail is not None or follow):
        raise click.UsageError("--head goes neither with --tail nor with --follow")
    wanted = Filter(frozenset(rank_ids), before, after)
    if follow or trial.row.run_count == 0:
        trial.reload()  # the queue knows why nothing comes
    show(_lines(trial, wanted, follow, head, tail), as_json=as_json)
    if follow:
        note(f"Trial log stream ended. To reopen log stream, run: detslurm t logs -f {trial.id}")
    elif trial.row.run_count == 0:
        note(_nothing_yet(trial))


def _lines(
    trial: Trial, wanted: Filter, follow: bool, head: int | None, tail: int | None
) -> Iterable[LogLine]:
    from detslurm.sdk import logs, polling

    if follow:
        return polling.follow_logs(trial, wanted, tail_count=tail, report=note)
    if tail is not None:
        return logs.tail(trial.directory, tail, wanted)
    if head is not None:
        return logs.head(trial.directory, head, wanted)
    return logs.lines(trial.directory, wanted)


def show(lines: Iterable[LogLine], *, as_json: bool = False) -> None:
    """Print log lines as they come."""
    for line in lines:
        if as_json:
            fields = {"time": line.time, "run": line.run, "rank": line.rank, "text": line.text}
            json_line(fields)
        else:
            click.echo(line.raw)


def _nothing_yet(trial: Trial) -> str:
    status = trial.job_status
    why = (status.message if status else None) or trial.row.end_reason
    text = f"trial {trial.id} is {trial.state} and has not run yet"
    return f"{text}: {why}" if why else text
