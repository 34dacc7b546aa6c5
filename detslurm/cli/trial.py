"""`detslurm trial`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

_SHOW = "detslurm.cli.trial_show"
_FIGURES = "detslurm.cli.trial_figures"

COMMANDS = {
    "list": Entry(
        "detslurm.cli.trial_list:list_trials", "List the trials of an experiment.", ("ls",)
    ),
    "describe": Entry(f"{_SHOW}:describe", "Show a trial, its runs and its failures."),
    "metrics": Entry(f"{_FIGURES}:metrics", "Show the metrics that a trial reported."),
    "profile": Entry(f"{_FIGURES}:profile", "Show what the profiler recorded of its nodes."),
    "logs": Entry("detslurm.cli.logs:trial_logs", "Print the log of a trial."),
    "download": Entry(
        "detslurm.cli.checkpoint_download:download_of_trial",
        "Copy a checkpoint, with the code that trained it.",
    ),
    "support-bundle": Entry(
        f"{_SHOW}:support_bundle", "Put what helps to find a failure into one file."
    ),
    "kill": Entry(f"{_SHOW}:kill", "End trials at once."),
    "list-checkpoints": Entry(
        f"{_SHOW}:list_checkpoints", "List the checkpoints of a trial.", ("lc",)
    ),
}

trial = lazy_group("trial", "Inspect and control trials.", COMMANDS)
