"""`detslurm checkpoint`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

_SHOW = "detslurm.cli.checkpoint_show"
_EDIT = "detslurm.cli.checkpoint_edit"

COMMANDS = {
    "list": Entry(f"{_SHOW}:list_checkpoints", "List checkpoints of all experiments.", ("ls",)),
    "browse": Entry(
        "detslurm.cli.checkpoint_browse:browse", "Browse checkpoints and files in the terminal."
    ),
    "describe": Entry(f"{_SHOW}:describe", "Show a checkpoint and what needs it."),
    "tree": Entry(f"{_SHOW}:tree", "Show the files of a checkpoint."),
    "download": Entry(
        "detslurm.cli.checkpoint_download:download",
        "Copy a checkpoint, with the code that trained it.",
    ),
    "verify": Entry(f"{_SHOW}:verify", "Find files that somebody has removed or changed."),
    "metadata": Entry(f"{_EDIT}:metadata", "Show or change the metadata of a checkpoint."),
    "rm": Entry(f"{_EDIT}:remove_files", "Delete some files of checkpoints."),
    "delete": Entry(f"{_EDIT}:delete", "Delete checkpoints."),
}

checkpoint = lazy_group("checkpoint", "List, inspect, copy and delete checkpoints.", COMMANDS)
