"""`detslurm experiment`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

COMMANDS = {
    "create": Entry("submission.submit:submit", "Submit an experiment, as `detslurm submit`."),
    "list": Entry("experiment.list:list_experiments", "List experiments.", ("ls",)),
    "describe": Entry(
        "experiment.show:describe", "Show experiments, their trials and their failures."
    ),
    "plot": Entry("experiment.plot:plot", "Plot learning curves as text."),
    "efficiency": Entry(
        "experiment.efficiency:efficiency", "Show what trials did with what they had."
    ),
    "logs": Entry("trial.logs:experiment_logs", "Print the log of an experiment's first trial."),
    "wait": Entry("experiment.lifecycle:wait", "Wait until an experiment is over."),
    "pause": Entry(
        "experiment.lifecycle:pause", "Checkpoint running trials, free the nodes, hold the jobs."
    ),
    "activate": Entry(
        "experiment.lifecycle:activate", "Resume after a pause, or after jobs were lost."
    ),
    "cancel": Entry(
        "experiment.lifecycle:cancel", "Checkpoint running trials, then end the experiment."
    ),
    "kill": Entry("experiment.lifecycle:kill", "End the experiment at once."),
    "bundle": Entry("experiment.bundle:bundle", "Put it into one file, for another site."),
    "continue": Entry(
        "experiment.derivation:continue_experiment",
        "Train on from the latest checkpoints of a finished one.",
    ),
    "fork": Entry(
        "experiment.derivation:fork", "Submit a new experiment with another one's configuration."
    ),
    "rerun": Entry("experiment.derivation:rerun", "Run an experiment again: same code and seeds."),
    "archive": Entry("experiment.lifecycle:archive", "Hide finished experiments from lists."),
    "unarchive": Entry(
        "experiment.lifecycle:unarchive", "Show archived experiments in lists again."
    ),
    "delete": Entry(
        "experiment.lifecycle:delete", "Delete experiments with checkpoints, logs and code."
    ),
    "set": Entry(
        "experiment.edit:set_group", "Change the name, labels, limits, priority or another setting."
    ),
    "move": Entry("experiment.edit:move", "Move experiments to a project."),
    "label": Entry("experiment.edit:label", "Add or remove labels."),
    "provenance": Entry(
        "experiment.provenance:provenance", "Show what it ran: code, packages, hardware."
    ),
    "config": Entry("experiment.show:config", "Print the resolved configuration as YAML."),
    "list-trials": Entry("trial.list:list_trials", "List the trials of an experiment.", ("lt",)),
    "list-checkpoints": Entry(
        "experiment.show:list_checkpoints", "List the checkpoints of an experiment.", ("lc",)
    ),
    "download": Entry(
        "checkpoint.download:download_of_experiment", "Copy the best checkpoints of an experiment."
    ),
    "export": Entry(
        "experiment.export:export", "Write experiments as CSV, Parquet or for other tools."
    ),
    "download-model-def": Entry(
        "experiment.show:download_model_def", "Save the code that an experiment runs."
    ),
}

experiment = lazy_group("experiment", "List, inspect and control experiments.", COMMANDS)
