"""A script's own declaration of its experiment, where none was submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class UnmanagedInfo:
    """Everything may be left out. With a name of the user's own for the experiment, later scripts
    add trials to it; with a name for the trial, too, they go on with that trial."""

    name: str | None = None
    description: str | None = None
    labels: Sequence[str] = ()
    workspace: str | None = None
    project: str | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    searcher: Mapping[str, Any] = field(default_factory=dict)
    external_experiment_id: str | None = None
    external_trial_id: str | None = None

    def created(self) -> dict[str, Any]:
        """Its part of the fact that creates the experiment."""
        known: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "labels": list(self.labels),
            "workspace": self.workspace,
            "project": self.project,
        }
        known["metric"] = self.searcher.get("metric")
        known["smaller_is_better"] = self.searcher.get("smaller_is_better")
        return {key: value for key, value in known.items() if value not in (None, [])}

    def config(self) -> dict[str, Any]:
        """Its part of the configuration."""
        known: dict[str, Any] = {"description": self.description, "labels": list(self.labels)}
        known |= {"workspace": self.workspace, "project": self.project}
        known["data"] = dict(self.data)
        known["hyperparameters"] = {k: {"type": "const", "val": v} for k, v in self.hparams.items()}
        return {key: value for key, value in known.items() if value}
