"""The end of `submit --test-mode`: waiting for the short training, and what it has shown."""

from __future__ import annotations

from collections.abc import Sequence

import click

from detslurm.cli.experiment.description import failure_text
from detslurm.cli.output.printing import note, print_json
from detslurm.sdk.client import Client
from detslurm.sdk.experiments import polling
from detslurm.sdk.submission.submit import Submission
from detslurm.sdk.test_mode import TrialCheck, checks


def await_checks(client: Client, done: Submission, *, as_json: bool) -> None:
    """Print what the short training did; the exit status is 1 unless it did everything."""
    experiment = client.experiment(done.experiment_id)
    state = polling.wait(experiment, report=note)
    trial = experiment.first_trial()
    found = checks(trial.row, experiment.view.metric)
    passed = state == "COMPLETED" and all(check.passed for check in found)
    if passed:
        experiment.archive()
    if as_json:
        print_json({**done.to_dict(), "state": state, "passed": passed, "checks": found})
    else:
        click.echo(_text(found))
        if state == "ERROR":
            click.echo("\n" + failure_text(trial))
        click.echo(_verdict(experiment.id, state, passed))
    if not passed:
        raise click.exceptions.Exit(1)


def _text(found: Sequence[TrialCheck]) -> str:
    return "\n".join(f"{c.name:>12}: {'ok' if c.passed else 'FAILED'}, {c.text}" for c in found)


def _verdict(number: int, state: str, passed: bool) -> str:
    if passed:
        return f"The test succeeded. Experiment {number} is archived."
    log = f"`detslurm e logs {number}` prints its log"
    return f"The test failed: experiment {number} is {state}; {log}."
