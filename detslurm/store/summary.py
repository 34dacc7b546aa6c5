"""An experiment's own rebuildable cache: rows of the trials that cannot change any more."""

from __future__ import annotations

from typing import Final

import msgspec

from detslurm._base.states import UNKNOWN
from detslurm.store import rebuildable
from detslurm.store.experiment import ExperimentDir
from detslurm.store.experiment_fold import ExperimentFacts
from detslurm.store.facts import is_newer
from detslurm.store.views import ExperimentView, TrialRow

# An unfinished experiment's summary is written again once this many more trials are over.
WORTHWHILE: Final = 50


class Summary(msgspec.Struct):
    """Rows of trials, as of fact number `facts`; `final` where the whole experiment is over."""

    facts: int = 0
    final: bool = False
    trials: list[TrialRow] = msgspec.field(default_factory=list)

    def valid_rows(self, facts: ExperimentFacts) -> dict[int, TrialRow]:
        """The rows that still hold, given later additions to the experiment."""
        if not facts.created.managed:
            return {}  # a script goes on with a trial that is over, without a fact
        again = facts.submitted_after(self.facts)
        return {
            row.id: row
            for row in self.trials
            if (row.final or (self.final and facts.count == self.facts))
            and row.id not in again
            and not _has_other_checkpoint(row, facts)
        }


def _has_other_checkpoint(row: TrialRow, facts: ExperimentFacts) -> bool:
    latest = row.latest_checkpoint
    return latest is not None and facts.checkpoints.applied(latest) != latest


def load(experiment: ExperimentDir) -> Summary:
    """The experiment's summary, empty where there is none that can be read."""
    return rebuildable.load(experiment.path / "summary.json", Summary) or Summary()


def keep(experiment: ExperimentDir, view: ExperimentView, cached: int, known: Summary) -> None:
    """Write the summary where that saves later readers work; a failure does no harm."""
    if view.state == "DELETED":
        return  # of which only the facts are left
    rows = [row for row in view.trials if row.final or view.finished]
    stale = known.facts != view.fact_count or not known.final
    if not (stale if view.finished else len(rows) - cached >= WORTHWHILE):
        return
    if UNKNOWN in view.trial_states or is_newer(view.format):
        return  # what can't be read now, or by this version, would be left out for good
    summary = Summary(view.fact_count, view.finished, rows)
    # It checks itself: a first listing of ten thousand needs no ten thousand waits for a disk.
    rebuildable.save(experiment.path / "summary.json", summary, sync=False)
