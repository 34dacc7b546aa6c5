"""Views of a finished experiment's trials in one rebuildable file, written when it is compacted.

A view is small, but its fold reads the logs, with every step that was reported.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from detslurm.store import rebuildable
from detslurm.store.checkpoint_fold import CheckpointFacts
from detslurm.store.errors import TORN
from detslurm.store.experiment import ExperimentDir
from detslurm.store.experiment_fold import ExperimentFacts
from detslurm.store.reading import ReadCache, fold_facts, fold_trial
from detslurm.store.views import ExperimentView, TrialView


class SavedView(NamedTuple):
    """A trial that is over."""

    view: TrialView
    profiled: bool  # whether its nodes recorded figures of the profiler


class _Content(msgspec.Struct):
    """Views as of fact number `facts`."""

    facts: int = 0
    trials: list[TrialView] = msgspec.field(default_factory=list)
    profiled: list[int] = msgspec.field(default_factory=list)


def _path(experiment: ExperimentDir) -> Path:
    return experiment.path / "trials.json"


def save_views(experiment: ExperimentDir, view: ExperimentView) -> None:
    """Fold and keep the views of all trials of an experiment that is over."""
    facts, content = fold_facts(experiment), _Content()
    content.facts = facts.count
    for row in view.trials:
        cache: ReadCache = {}
        folded = fold_trial(experiment.trial(row.id), facts.context(row.id), cache)
        if any(problem.reason != TORN for problem in folded.problems):
            continue  # it may be whole at the next look
        content.trials.append(folded)
        if any(r.get("t") == "profile" for log in cache.values() for r in log.records):
            content.profiled.append(row.id)
    rebuildable.save(_path(experiment), content)


def saved_views(experiment: ExperimentDir, facts: ExperimentFacts) -> dict[int, SavedView]:
    """The views that still hold, by the ids of their trials, given all facts of the experiment."""
    if not facts.created.managed:
        return {}  # as in `Summary.valid_rows`
    content = rebuildable.load(_path(experiment), _Content) or _Content()
    again, profiled = facts.submitted_after(content.facts), set(content.profiled)
    return {
        view.id: SavedView(_applied(view, facts.checkpoints), view.id in profiled)
        for view in content.trials
        if view.final and view.id not in again
    }


def _applied(view: TrialView, facts: CheckpointFacts) -> TrialView:
    """The view with what became of its checkpoints."""
    now = tuple(map(facts.applied, view.checkpoints))
    there = (one for one in reversed(now) if one.state == "COMPLETED" and one.kind is None)
    latest = next(there, None)
    return msgspec.structs.replace(view, checkpoints=now, latest_checkpoint=latest)
