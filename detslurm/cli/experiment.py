"""`detslurm experiment`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

_SHOW = "detslurm.cli.experiment_show"
_LIFECYCLE = "detslurm.cli.experiment_lifecycle"
_EDIT = "detslurm.cli.experiment_edit"
_LOGS = "detslurm.cli.logs"

COMMANDS = {
    "create": Entry("detslurm.cli.submit:submit", "Submit an experiment (as `detslurm submit`)."),
    "list": Entry(f"{_SHOW}:list_experiments", "List experiments.", ("ls",)),
    "describe": Entry(f"{_SHOW}:describe", "Show experiments, their trials and what failed."),
    "logs": Entry(f"{_LOGS}:experiment_logs", "Show the log of the first trial."),
    "wait": Entry(f"{_LIFECYCLE}:wait", "Wait until an experiment is over."),
    "pause": Entry(f"{_LIFECYCLE}:pause", "Checkpoint, free the allocations, and hold."),
    "activate": Entry(f"{_LIFECYCLE}:activate", "Go on after a pause, or after jobs were lost."),
    "cancel": Entry(f"{_LIFECYCLE}:cancel", "Checkpoint, then end for good."),
    "kill": Entry(f"{_LIFECYCLE}:kill", "End for good, now."),
    "archive": Entry(f"{_LIFECYCLE}:archive", "Leave finished experiments out of lists."),
    "unarchive": Entry(f"{_LIFECYCLE}:unarchive", "Show archived experiments in lists again."),
    "delete": Entry(f"{_LIFECYCLE}:delete", "Remove experiments with checkpoints, logs and code."),
    "set": Entry(f"{_EDIT}:set_group", "Change name, description, labels, notes and more."),
    "label": Entry(f"{_EDIT}:label", "Add and remove labels."),
    "config": Entry(f"{_SHOW}:config", "Print the resolved configuration as YAML."),
    "list-trials": Entry(f"{_SHOW}:list_trials", "List an experiment's trials.", ("lt",)),
    "list-checkpoints": Entry(
        f"{_SHOW}:list_checkpoints", "List an experiment's checkpoints.", ("lc",)
    ),
    "download-model-def": Entry(
        f"{_SHOW}:download_model_def", "Fetch the code that the experiment runs."
    ),
}

experiment = lazy_group("experiment", "List, inspect and control experiments.", COMMANDS)
