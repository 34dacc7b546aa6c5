"""Commands on trials, logs aside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from detslurm._base.states import outcome_words
from detslurm.cli.arguments.ids import client, for_each_trial, several_trials, trial_id
from detslurm.cli.checkpoint import listing
from detslurm.cli.experiment import description, efficiency
from detslurm.cli.experiment.description import compact
from detslurm.cli.output.printing import (
    Column,
    Document,
    Table,
    describes,
    json_option,
    local_time,
    shows,
    size,
    table,
    warn,
)
from detslurm.cli.output.tables import columns_text
from detslurm.sdk.checkpoints.choosing import fronts_of
from detslurm.sdk.parts import compress_hostlist

if TYPE_CHECKING:
    from detslurm.sdk.parts import RunView, TrialView
    from detslurm.sdk.trials.trial import Trial


@click.command()
@trial_id
@click.option("--metrics", is_flag=True, help="Include all metrics that the trial reported.")
@describes
def describe(trial_id: int, metrics: bool) -> Document:
    """Show the state, runs and checkpoints of a trial, and why it failed.

    \b
    Examples:
      detslurm trial describe 12
      detslurm trial describe 12 --metrics --json
    """
    trial = client().trial(trial_id)
    return Document(
        lambda: _text(trial, metrics), lambda: description.trial_data(trial, metrics=metrics)
    )


def _text(trial: Trial, metrics: bool) -> str:
    view = trial.view
    best = description.validation_text(trial.experiment.view.metric, view.best_validation)
    rows = [
        ("Trial", view.id),
        ("Experiment", view.experiment_id),
        ("State", description.trial_state(trial)),
        ("Reason", view.end_reason),
        ("Idle", trial.idle),
        ("Continues", f"trial {view.continues}" if view.continues else None),
        ("H-Params", description.compact(view.hparams)),
        ("# of Batches", view.steps),
        ("Best Validation", best),
        ("Last Validation", description.metrics_text(view.last_validation)),
        ("Search", description.trial_search_text(trial)),
        ("Restarts", view.restarts),
        ("Started", local_time(view.started)),
        ("Ended", local_time(view.ended)),
        *efficiency.described(trial.efficiency()),
        ("Job", description.job_text(trial)),
        ("Expected Start", local_time(_expected_start(trial))),
        ("Message", trial.job_status.message if trial.job_status else None),
        ("Status", view.status),
        ("Not staged", _not_staged(view)),
        ("Deleted", description.deleted_text(view)),
        ("Directory", trial.directory.path),
    ]
    parts = [description.properties(rows), "Runs:\n" + columns_text(_RUNS, view.runs)]
    if found := trial.checkpoints():
        parts.append("Checkpoints:\n" + listing.as_table(found))
    if view.alerts:
        alerts = [[local_time(a.time), a.run, a.level, a.text] for a in view.alerts]
        parts.append("Alerts:\n" + table(["Time", "Run", "Level", "Alert"], alerts))
    if artifacts := description.artifacts_data(trial):
        kept = [
            [a["name"], a["kind"], len(a["steps"]), a["steps"][-1], a["size"]] for a in artifacts
        ]
        titles = ["Name", "Kind", "Kept", "Last at Batch", "Bytes"]
        parts.append("Artifacts (`detslurm report` shows them):\n" + table(titles, kept))
    if metrics:
        parts.append("Metrics:\n" + _metrics(trial))
    if view.state == "ERROR":
        parts.append(description.failure_text(trial))
    return "\n\n".join(parts)


def _not_staged(view: TrialView) -> str:
    whys = (f"run {r.number} on {n}: {why}" for r in view.runs for n, why in r.not_staged.items())
    return "\n".join(whys)


def _expected_start(trial: Trial) -> float | None:
    job = trial.job_status.job if trial.job_status else None
    return job.expected_start if job else None


def _hosts(run: RunView) -> str | None:
    nodes = run.job.nodes
    return compress_hostlist(nodes) if len(nodes) > 1 else run.host


_RUNS = [
    Column("Run", lambda run: run.number),
    Column("Job", lambda run: run.job.ref, drop=1, least=8),
    Column("Host", _hosts, drop=4, least=8),
    Column("Started", lambda run: run.started, "time", drop=3),
    Column("Ended", lambda run: run.ended, "time", drop=2),
    Column("From Batch", lambda run: run.resumed_steps, drop=5),
    Column("Outcome", lambda run: outcome_words(run.outcome)),
    Column("Reason", lambda run: run.reason, least=24),
]


def _metrics(trial: Trial) -> str:
    rows = []
    for row in trial.metric_rows():
        # A Trainer repeats the steps for searches that count by them.
        reported = {k: v for k, v in row.metrics.items() if (k, v) != ("batches", row.steps)}
        rows.append([row.group, row.steps, compact(reported), row.run])
    return table(["Group", "# of Batches", "Metrics", "Run"], rows)


@click.command()
@several_trials
@json_option
def kill(ids: list[int], as_json: bool) -> None:
    """End trials at once; the other trials of their experiment continue.

    \b
    Examples:
      detslurm trial kill 12
    """

    def act(trial: Trial) -> str:
        over = f"Trial {trial.id} has already ended: {trial.state}"
        return f"Killed trial {trial.id}" if trial.kill() else over

    for_each_trial(ids, act, as_json=as_json)


@click.command("list-checkpoints")
@trial_id
@shows
def list_checkpoints(trial_id: int) -> Table:
    """List the checkpoints of a trial, oldest first."""
    trial = client().stored_trial(trial_id)
    several = trial.experiment.row.objectives is not None
    front = fronts_of(trial.experiment.checkpoints()) if several else ()
    return listing.as_rows(trial.checkpoints(), front=front)


@click.command("support-bundle")
@trial_id
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=".",
    show_default=True,
    metavar="PATH",
    help="Write this file, which must not exist, or a file in this directory.",
)
@describes
def support_bundle(trial_id: int, output: Path) -> Document:
    """Put into one file all that a helper needs to see why a trial does not run.

    Configuration, records, the end of the logs, figures of the metrics, what the cluster knows of
    the jobs, and what `detslurm doctor` finds. Secrets of the configuration are masked, in the logs
    too; what else the code prints is in the file.

    \b
    Examples:
      detslurm trial support-bundle 12
      detslurm trial support-bundle 12 -o /tmp/for-the-admin.tar.gz
    """
    made = client().trial(trial_id).support_bundle(output)
    for problem in made.missing:
        warn(f"left out: {problem}")
    return Document(
        lambda: f"Wrote {made.path} ({size(made.size)}). Look into it before you send it.",
        lambda: {"path": str(made.path), "size": made.size, "missing": made.missing},
    )
