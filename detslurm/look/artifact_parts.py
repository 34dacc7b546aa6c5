"""The images and tables of trials for the document, as many as fit."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from detslurm.look.document import ArtifactPart
from detslurm.look.plain import plain
from detslurm.look.problems import Problems
from detslurm.sdk.experiments.ordering import best_trials_first
from detslurm.sdk.trials.artifacts import shown_artifacts
from detslurm.store.artifacts import Artifact, Named, fitted

if TYPE_CHECKING:
    from detslurm.sdk import Experiment
    from detslurm.store import ExperimentDir, TrialView

_LEAST: Final = 1 << 18


def artifact_parts(
    experiment: Experiment, views: Mapping[int, TrialView], size: int, problems: Problems
) -> dict[int, list[ArtifactPart]]:
    """Those of each trial; the best trials' where not all fit into `size` bytes."""
    wanted = [view for view in views.values() if view.artifacts]
    share = max(size // max(len(wanted), 1), _LEAST)
    directory = experiment._snapshot.directory
    found: dict[int, list[ArtifactPart]] = {}
    for row in best_trials_first(wanted, experiment.row) if wanted else ():
        if size <= 0:
            break  # nothing more is read, either
        what = f"the artifacts of trial {row.id}"
        read = partial(_fitted, directory, row.id, min(share, size))
        named = problems.read(what, read) or {}
        size -= sum(one.size for some in named.values() for one in some)
        found[row.id] = [_part(name, some) for name, some in sorted(named.items())]
    return found


def _fitted(directory: ExperimentDir, trial_id: int, size: int) -> Named:
    return fitted(shown_artifacts(directory, directory.trial(trial_id)), size)


def _part(name: str, some: list[Artifact]) -> ArtifactPart:
    return ArtifactPart(
        name=plain(name),
        steps=[one.steps for one in some],
        kinds=[one.kind for one in some],
        media=[one.media for one in some],
        data=[base64.b64encode(one.data).decode() for one in some],
    )
