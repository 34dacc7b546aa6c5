"""`detslurm trial`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

_SHOW = "detslurm.cli.trial_show"
_FIGURES = "detslurm.cli.trial_figures"

COMMANDS = {
    "list": Entry(
        "detslurm.cli.experiment_show:list_trials", "List an experiment's trials.", ("ls",)
    ),
    "describe": Entry(f"{_SHOW}:describe", "Show a trial, its runs and what failed."),
    "metrics": Entry(f"{_FIGURES}:metrics", "Show the metrics that a trial reported."),
    "profile": Entry(f"{_FIGURES}:profile", "Show what the profiler recorded of its nodes."),
    "logs": Entry("detslurm.cli.logs:trial_logs", "Show a trial's log."),
    "download": Entry(f"{_SHOW}:download", "Copy a checkpoint, complete with its code."),
    "kill": Entry(f"{_SHOW}:kill", "End trials for good, now."),
    "list-checkpoints": Entry(f"{_SHOW}:list_checkpoints", "List a trial's checkpoints.", ("lc",)),
}

trial = lazy_group("trial", "Inspect and control trials.", COMMANDS)
