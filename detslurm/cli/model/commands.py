"""`detslurm model`: the table of its commands."""

from __future__ import annotations

from detslurm.cli.lazy import Entry, lazy_group

COMMANDS = {
    "create": Entry("model.edit:create", "Make a model: a name for checkpoints."),
    "list": Entry("model.show:list_models", "List models.", ("ls",)),
    "describe": Entry("model.show:describe", "Show a model and its versions, or one version."),
    "list-versions": Entry("model.show:list_versions", "List the versions of a model.", ("lv",)),
    "register-version": Entry(
        "model.edit:register_version", "Make a checkpoint the next version of a model."
    ),
    "delete-version": Entry("model.edit:delete_version", "Delete a version; its files stay."),
    "delete": Entry("model.edit:delete", "Delete models with all their versions."),
    "move": Entry("model.edit:move", "Put a model into another workspace."),
    "archive": Entry("model.edit:archive", "Hide models from lists."),
    "unarchive": Entry("model.edit:unarchive", "Show archived models in lists again."),
    "set": Entry("model.edit:set_field", "Change the name, the description or the notes."),
    "label": Entry("model.edit:label", "Add or remove labels."),
    "metadata": Entry("model.edit:metadata", "Set or remove metadata."),
}

model = lazy_group("model", "Give checkpoints names, with numbered versions.", COMMANDS)
