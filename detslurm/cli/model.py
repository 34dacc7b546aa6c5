"""`detslurm model`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

_SHOW = "detslurm.cli.model_show"
_CHANGE = "detslurm.cli.model_change"
_EDIT = "detslurm.cli.model_edit"

COMMANDS = {
    "create": Entry(f"{_CHANGE}:create", "Make a model: a name for checkpoints."),
    "list": Entry(f"{_SHOW}:list_models", "List models.", ("ls",)),
    "describe": Entry(f"{_SHOW}:describe", "Show a model and its versions, or one version."),
    "list-versions": Entry(f"{_SHOW}:list_versions", "List the versions of a model.", ("lv",)),
    "register-version": Entry(
        f"{_CHANGE}:register_version", "Make a checkpoint the next version of a model."
    ),
    "delete-version": Entry(f"{_CHANGE}:delete_version", "Delete a version; its files stay."),
    "delete": Entry(f"{_CHANGE}:delete", "Delete models with all their versions."),
    "move": Entry(f"{_CHANGE}:move", "Put a model into another workspace."),
    "archive": Entry(f"{_CHANGE}:archive", "Hide models from lists."),
    "unarchive": Entry(f"{_CHANGE}:unarchive", "Show archived models in lists again."),
    "set": Entry(f"{_EDIT}:set_group", "Change the name, the description or the notes."),
    "label": Entry(f"{_EDIT}:label", "Add or remove labels."),
    "metadata": Entry(f"{_EDIT}:metadata", "Set or remove metadata."),
}

model = lazy_group("model", "Names for checkpoints, with numbered versions.", COMMANDS)
