"""A trial's images and tables, without the secrets of its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from detslurm.sdk.hiding import hidden, secrets_in
from detslurm.store.artifacts import Artifact, Named, read_artifacts

if TYPE_CHECKING:
    from detslurm.store import ExperimentDir, TrialDir


def shown_artifacts(experiment: ExperimentDir, trial: TrialDir) -> Named:
    """The reported artifacts of a trial, by name and step; secrets in its texts are masked."""
    found = read_artifacts(trial.path)
    if not any(one.media in ("svg", "json") for some in found.values() for one in some):
        return found
    secrets = secrets_in(experiment) or []
    return {name: [_without(one, secrets) for one in some] for name, some in found.items()}


def _without(one: Artifact, secrets: list[bytes]) -> Artifact:
    return replace(one, data=hidden(one.data, secrets)) if one.media in ("svg", "json") else one
