"""Commands on trials, logs aside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.ids import client, several_ids, trial_id
from detslurm.cli.output import json_option, local_time, print_json, table

if TYPE_CHECKING:
    from detslurm.sdk.trial import Trial


@click.command()
@trial_id
@click.option("--metrics", is_flag=True, help="Include all metrics that the trial reported.")
@json_option
def describe(trial_id: int, metrics: bool, as_json: bool) -> None:
    """Show the state, runs and checkpoints of a trial, and why it failed.

    \b
    Examples:
      detslurm trial describe 12
      detslurm trial describe 12 --metrics --json
    """
    from detslurm.cli import description

    trial = client().trial(trial_id)
    if as_json:
        print_json(description.trial_data(trial, metrics=metrics))
        return
    click.echo(_text(trial, metrics))


def _text(trial: Trial, metrics: bool) -> str:
    from detslurm.cli import checkpoints, description

    view = trial.view
    best = description.validation_text(trial.experiment.view.metric, view.best_validation)
    rows = [
        ("Trial", view.id),
        ("Experiment", view.experiment_id),
        ("State", view.state),
        ("Reason", view.end_reason),
        ("H-Params", description.compact(view.hparams)),
        ("# of Batches", view.steps),
        ("Best Validation", best),
        ("Last Validation", description.metrics_text(view.last_validation)),
        ("Search", description.trial_search_text(trial)),
        ("Restarts", view.restarts),
        ("Started", local_time(view.started)),
        ("Ended", local_time(view.ended)),
        ("Job", description.job_text(trial)),
        ("Message", trial.job_status.message if trial.job_status else None),
        ("Status", view.status),
        ("Directory", trial.directory.path),
    ]
    parts = [description.properties(rows), "Runs:\n" + _runs(trial)]
    if found := checkpoints.of_trial(trial):
        parts.append("Checkpoints:\n" + checkpoints.as_table(found))
    if view.alerts:
        alerts = [[local_time(a.time), a.run, a.level, a.text] for a in view.alerts]
        parts.append("Alerts:\n" + table(["Time", "Run", "Level", "Alert"], alerts))
    if metrics:
        parts.append("Metrics:\n" + _metrics(trial))
    if view.state == "ERROR":
        parts.append(description.failure_text(trial))
    return "\n\n".join(parts)


def _runs(trial: Trial) -> str:
    headers = ["Run", "Job", "Host", "Started", "Ended", "From Batch", "Outcome", "Reason"]
    rows: list[list[Any]] = [
        [
            run.number,
            run.job.get("ref", ""),
            run.host or "",
            local_time(run.started),
            local_time(run.ended),
            run.resumed_steps,
            run.outcome or "",
            run.reason or "",
        ]
        for run in trial.view.runs
    ]
    return table(headers, rows)


def _metrics(trial: Trial) -> str:
    from detslurm.cli.description import compact

    rows = []
    for row in trial.iter_metrics():
        # A Trainer repeats the steps for searches that count by them.
        reported = {k: v for k, v in row.metrics.items() if (k, v) != ("batches", row.steps)}
        rows.append([row.group, row.steps, compact(reported), row.run])
    return table(["Group", "# of Batches", "Metrics", "Run"], rows)


@click.command()
@several_ids
@json_option
def kill(ids: list[int], as_json: bool) -> None:
    """End trials at once; the other trials of their experiment continue."""
    from detslurm.cli.ids import for_each_trial

    def act(trial: Trial) -> str:
        over = f"Trial {trial.id} has already ended: {trial.state}"
        return f"Killed trial {trial.id}" if trial.kill() else over

    for_each_trial(ids, act, as_json=as_json)


@click.command("list-checkpoints")
@trial_id
@json_option
def list_checkpoints(trial_id: int, as_json: bool) -> None:
    """List the checkpoints of a trial, oldest first."""
    from detslurm.cli import checkpoints

    checkpoints.show(checkpoints.of_trial(client().trial(trial_id)), as_json=as_json)


@click.command()
@trial_id
@click.option(
    "--best", is_flag=True, help="Choose the checkpoint with the best validation at its step."
)
@click.option("--latest", is_flag=True, help="Choose the newest checkpoint.")
@click.option("--uuid", help="Choose the checkpoint with this UUID.")
@click.option(
    "-o",
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Copy to this directory, by default checkpoints/UUID.",
)
def download(
    trial_id: int, best: bool, latest: bool, uuid: str | None, output_dir: Path | None
) -> None:
    """Copy a checkpoint of a trial, with the code that trained it, and print its path.

    \b
    Examples:
      detslurm trial download 12 --best -o model/
      detslurm trial download 12 --latest
    """
    if best + latest + (uuid is not None) != 1:
        raise click.UsageError("one of --best, --latest and --uuid is required")
    trial = client().trial(trial_id)
    chosen = uuid or _chosen(trial, best=best)
    click.echo(trial.download(chosen, output_dir or Path("checkpoints") / chosen))


def _chosen(trial: Trial, *, best: bool) -> str:
    from detslurm.cli import checkpoints
    from detslurm.sdk.errors import LifecycleError

    found = checkpoints.of_trial(trial)
    if best:
        found = checkpoints.best_of(found, smaller=trial.experiment.view.smaller_is_better)
    if not found:
        rated = " with a validation at its step" if best else ""
        raise LifecycleError(f"trial {trial.id} has no checkpoint{rated}")
    return found[0 if best else -1].checkpoint.uuid
