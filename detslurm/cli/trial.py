"""`detslurm trial`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

_LOOK = "detslurm.cli.trial_look"

COMMANDS = {
    "list": Entry(
        "detslurm.cli.experiment_look:list_trials", "List an experiment's trials.", ("ls",)
    ),
    "describe": Entry(f"{_LOOK}:describe", "Show a trial, its runs and what failed."),
    "logs": Entry("detslurm.cli.logs:trial_logs", "Show a trial's log."),
    "download": Entry(f"{_LOOK}:download", "Copy a checkpoint, complete with its code."),
    "kill": Entry(f"{_LOOK}:kill", "End trials for good, now."),
    "list-checkpoints": Entry(f"{_LOOK}:list_checkpoints", "List a trial's checkpoints.", ("lc",)),
}

trial = lazy_group("trial", "Inspect and control trials.", COMMANDS)
