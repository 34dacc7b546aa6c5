"""Showing the first trial's log right after a submission."""

from __future__ import annotations

from detslurm.cli.logs import show
from detslurm.cli.output import note, warn
from detslurm.store import Store


def follow_first_trial(store: Store, experiment_id: int) -> None:
    """Follow the first trial's log until the trial is over."""
    from detslurm.sdk.client import Client
    from detslurm.sdk.watch import follow_logs

    trial = Client(store.path, say=warn).experiment(experiment_id).first_trial()
    note("Waiting for first trial to begin...")
    note(f"Following first trial with ID {trial.id}")
    show(follow_logs(trial, tell=note))
    note(f"Trial log stream ended. To reopen log stream, run: detslurm t logs -f {trial.id}")
