"""`detslurm experiment`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

_SHOW = "detslurm.cli.experiment_show"
_LIFECYCLE = "detslurm.cli.experiment_lifecycle"
_EDIT = "detslurm.cli.experiment_edit"
_DESCENT = "detslurm.cli.experiment_descent"
_LOGS = "detslurm.cli.logs"

COMMANDS = {
    "create": Entry("detslurm.cli.submit:submit", "Submit an experiment, as `detslurm submit`."),
    "list": Entry("detslurm.cli.experiment_list:list_experiments", "List experiments.", ("ls",)),
    "describe": Entry(f"{_SHOW}:describe", "Show experiments, their trials and their failures."),
    "plot": Entry("detslurm.cli.experiment_plot:plot", "Plot learning curves as text."),
    "efficiency": Entry(
        "detslurm.cli.efficiency:efficiency", "Show what trials did with what they had."
    ),
    "logs": Entry(f"{_LOGS}:experiment_logs", "Print the log of an experiment's first trial."),
    "wait": Entry(f"{_LIFECYCLE}:wait", "Wait until an experiment is over."),
    "pause": Entry(
        f"{_LIFECYCLE}:pause", "Checkpoint running trials, free the nodes, hold the jobs."
    ),
    "activate": Entry(f"{_LIFECYCLE}:activate", "Resume after a pause, or after jobs were lost."),
    "cancel": Entry(f"{_LIFECYCLE}:cancel", "Checkpoint running trials, then end the experiment."),
    "kill": Entry(f"{_LIFECYCLE}:kill", "End the experiment at once."),
    "bundle": Entry("detslurm.cli.bundle:bundle", "Put it into one file, for another site."),
    "continue": Entry(
        f"{_DESCENT}:continue_experiment", "Train on from the latest checkpoints of a finished one."
    ),
    "fork": Entry(f"{_DESCENT}:fork", "Submit a new experiment with another one's configuration."),
    "rerun": Entry(f"{_DESCENT}:rerun", "Run an experiment again: same code and seeds."),
    "archive": Entry(f"{_LIFECYCLE}:archive", "Hide finished experiments from lists."),
    "unarchive": Entry(f"{_LIFECYCLE}:unarchive", "Show archived experiments in lists again."),
    "delete": Entry(f"{_LIFECYCLE}:delete", "Delete experiments with checkpoints, logs and code."),
    "set": Entry(f"{_EDIT}:set_group", "Change the name, description, labels, notes or limits."),
    "move": Entry(f"{_EDIT}:move", "Move experiments to a project."),
    "label": Entry(f"{_EDIT}:label", "Add or remove labels."),
    "config": Entry(f"{_SHOW}:config", "Print the resolved configuration as YAML."),
    "list-trials": Entry(
        "detslurm.cli.trial_list:list_trials", "List the trials of an experiment.", ("lt",)
    ),
    "list-checkpoints": Entry(
        f"{_SHOW}:list_checkpoints", "List the checkpoints of an experiment.", ("lc",)
    ),
    "download": Entry(
        "detslurm.cli.checkpoint_download:download_of_experiment",
        "Copy the best checkpoints of an experiment.",
    ),
    "export": Entry(
        "detslurm.cli.export:export", "Write experiments as CSV, Parquet or for other tools."
    ),
    "download-model-def": Entry(
        f"{_SHOW}:download_model_def", "Save the code that an experiment runs."
    ),
}

experiment = lazy_group("experiment", "List, inspect and control experiments.", COMMANDS)
