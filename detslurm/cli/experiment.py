"""`detslurm experiment`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

_LOOK = "detslurm.cli.experiment_look"
_WISH = "detslurm.cli.experiment_wish"
_SET = "detslurm.cli.experiment_set"
_LOGS = "detslurm.cli.logs"

COMMANDS = {
    "create": Entry("detslurm.cli.submit:submit", "Submit an experiment (as `detslurm submit`)."),
    "list": Entry(f"{_LOOK}:list_experiments", "List experiments.", ("ls",)),
    "describe": Entry(f"{_LOOK}:describe", "Show experiments, their trials and what failed."),
    "logs": Entry(f"{_LOGS}:experiment_logs", "Show the log of the first trial."),
    "wait": Entry(f"{_WISH}:wait", "Wait until an experiment is over."),
    "pause": Entry(f"{_WISH}:pause", "Checkpoint, free the allocations, and hold."),
    "activate": Entry(f"{_WISH}:activate", "Go on after a pause, or after jobs were lost."),
    "cancel": Entry(f"{_WISH}:cancel", "Checkpoint, then end for good."),
    "kill": Entry(f"{_WISH}:kill", "End for good, now."),
    "archive": Entry(f"{_WISH}:archive", "Leave finished experiments out of lists."),
    "unarchive": Entry(f"{_WISH}:unarchive", "Show archived experiments in lists again."),
    "delete": Entry(f"{_WISH}:delete", "Remove experiments with checkpoints, logs and code."),
    "set": Entry(f"{_SET}:set_group", "Change name, description, labels, notes and more."),
    "label": Entry(f"{_SET}:label", "Add and remove labels."),
    "config": Entry(f"{_LOOK}:config", "Print the resolved configuration as YAML."),
    "list-trials": Entry(f"{_LOOK}:list_trials", "List an experiment's trials.", ("lt",)),
    "list-checkpoints": Entry(
        f"{_LOOK}:list_checkpoints", "List an experiment's checkpoints.", ("lc",)
    ),
    "download-model-def": Entry(
        f"{_LOOK}:download_model_def", "Fetch the code that the experiment runs."
    ),
}

experiment = lazy_group("experiment", "List, inspect and control experiments.", COMMANDS)
