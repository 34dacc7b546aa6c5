"""`detslurm checkpoint`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

COMMANDS = {
    "list": Entry(
        "checkpoint.show:list_checkpoints", "List checkpoints of all experiments.", ("ls",)
    ),
    "browse": Entry("checkpoint.browse:browse", "Browse checkpoints and files in the terminal."),
    "describe": Entry("checkpoint.show:describe", "Show a checkpoint and what needs it."),
    "tree": Entry("checkpoint.show:tree", "Show the files of a checkpoint."),
    "download": Entry(
        "checkpoint.download:download", "Copy a checkpoint, with the code of its Trial class."
    ),
    "verify": Entry("checkpoint.show:verify", "Find files that were removed or changed."),
    "metadata": Entry("checkpoint.edit:metadata", "Show or change the metadata of a checkpoint."),
    "rm": Entry("checkpoint.edit:remove_files", "Delete some files of checkpoints."),
    "delete": Entry("checkpoint.edit:delete", "Delete checkpoints."),
}

checkpoint = lazy_group("checkpoint", "List, copy, check and delete checkpoints.", COMMANDS)
