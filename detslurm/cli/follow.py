"""Showing the first trial's log right after a submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detslurm.cli.logs import show
from detslurm.cli.output import note, number

if TYPE_CHECKING:
    from detslurm.sdk.client import Client
    from detslurm.store import TrialView


def follow_first_trial(client: Client, experiment_id: int) -> None:
    """Follow the first trial's log until the trial is over."""
    from detslurm.sdk.polling import follow_logs

    trial = client.experiment(experiment_id).first_trial()
    note("Waiting for first trial to begin...")
    note(f"Following first trial with ID {trial.id}")
    show(follow_logs(trial, report=note))
    note(f"Trial log stream ended. To reopen log stream, run: detslurm t logs -f {trial.id}")
    click.echo(result(trial.reload().view))


def result(trial: TrialView) -> str:
    """What came of a trial, in a line or two."""
    lines = [f"Trial {trial.id} of experiment {trial.experiment_id}: {trial.state}"]
    best, latest = trial.best_validation, trial.latest_checkpoint
    if best is not None and best.value is not None:
        lines[0] += f", best validation {number(best.value)} at batch {best.steps}"
    if latest is not None:
        lines.append(f"Latest checkpoint: {latest.uuid} (batch {latest.steps})")
    return "\n".join(lines)
