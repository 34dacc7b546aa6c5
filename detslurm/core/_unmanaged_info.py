"""A script's own declaration of its experiment, where none was submitted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class UnmanagedInfo:
    """The fields of `core_v2.Config`, which describes them; nothing is declared by default."""

    name: str | None = None
    hparams: dict[str, Any] | None = None
    data: dict[str, Any] | None = None
    description: str | None = None
    labels: list[str] | None = None
    workspace: str | None = None
    project: str | None = None
    checkpoint_storage: str | dict[str, Any] | None = None
    searcher: dict[str, Any] | None = None
    external_experiment_id: str | None = None
    external_trial_id: str | None = None

    def _created(self) -> dict[str, Any]:
        """Its part of the fact that creates the experiment."""
        searcher = self.searcher or {}
        return self._texts() | _known(
            name=self.name,
            metric=searcher.get("metric"),
            smaller_is_better=searcher.get("smaller_is_better"),
        )

    def _config(self) -> dict[str, Any]:
        """Its part of the configuration."""
        hparams = {k: {"type": "const", "val": v} for k, v in (self.hparams or {}).items()}
        return self._texts() | _known(data=self.data or None, hyperparameters=hparams or None)

    def _texts(self) -> dict[str, Any]:
        return _known(
            description=self.description or None,
            labels=list(self.labels or ()) or None,
            workspace=self.workspace,
            project=self.project,
        )


def _known(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
