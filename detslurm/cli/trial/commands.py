"""`detslurm trial`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

COMMANDS = {
    "list": Entry("trial.list:list_trials", "List the trials of an experiment.", ("ls",)),
    "describe": Entry("trial.show:describe", "Show a trial, its runs and its failures."),
    "metrics": Entry("trial.figures:metrics", "Show the metrics that a trial reported."),
    "profile": Entry("trial.figures:profile", "Show what the profiler recorded of its nodes."),
    "logs": Entry("trial.logs:trial_logs", "Print the log of a trial."),
    "download": Entry(
        "checkpoint.download:download_of_trial",
        "Copy a checkpoint, with the code of its Trial class.",
    ),
    "support-bundle": Entry(
        "trial.show:support_bundle", "Put what helps to find a failure into one file."
    ),
    "kill": Entry("trial.show:kill", "End trials at once."),
    "list-checkpoints": Entry(
        "trial.show:list_checkpoints", "List the checkpoints of a trial.", ("lc",)
    ),
}

trial = lazy_group("trial", "Inspect and control trials.", COMMANDS)
