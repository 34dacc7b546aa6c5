"""The crash-safe state store on a shared file system: facts, claims, run logs and their folds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detslurm.store.errors import (
    CorruptRecord,
    NoHardLinks,
    NotFound,
    Problem,
    RunTaken,
    StoreError,
    StoreFault,
    StoreFull,
    TrialEnded,
)
from detslurm.store.experiment import ExperimentDir
from detslurm.store.runlog import RunLog, read_records
from detslurm.store.store import Store
from detslurm.store.trial import Run, TrialDir

if TYPE_CHECKING:
    from detslurm.store.columns import Columns, metric_columns
    from detslurm.store.compaction import compact
    from detslurm.store.curve import MetricRow
    from detslurm.store.eventlog import EventLog
    from detslurm.store.experimentfold import ExperimentFacts
    from detslurm.store.probing import Check, ProbeReport, probe
    from detslurm.store.profiling import ProfileRow, trial_profile
    from detslurm.store.reading import (
        fold_experiment,
        fold_facts,
        fold_trial,
        trial_metrics,
        view_trial,
    )
    from detslurm.store.trialfold import TrialContext
    from detslurm.store.views import (
        CheckpointView,
        ExperimentRow,
        ExperimentView,
        Job,
        RunView,
        TrialRow,
        TrialView,
        ValidationView,
        Wishes,
    )

__all__ = [
    "Check",
    "CheckpointView",
    "Columns",
    "CorruptRecord",
    "EventLog",
    "ExperimentDir",
    "ExperimentFacts",
    "ExperimentRow",
    "ExperimentView",
    "Job",
    "MetricRow",
    "NoHardLinks",
    "NotFound",
    "ProbeReport",
    "Problem",
    "ProfileRow",
    "Run",
    "RunLog",
    "RunTaken",
    "RunView",
    "Store",
    "StoreError",
    "StoreFault",
    "StoreFull",
    "TrialContext",
    "TrialDir",
    "TrialEnded",
    "TrialRow",
    "TrialView",
    "ValidationView",
    "Wishes",
    "compact",
    "fold_experiment",
    "fold_facts",
    "fold_trial",
    "metric_columns",
    "probe",
    "read_records",
    "trial_metrics",
    "trial_profile",
    "view_trial",
]

# Node agents need none of this, runners and most commands little: imported on first use.
_LATE = {
    "Check": "probing",
    "CheckpointView": "views",
    "Columns": "columns",
    "EventLog": "eventlog",
    "ExperimentFacts": "experimentfold",
    "ExperimentRow": "views",
    "ExperimentView": "views",
    "Job": "views",
    "MetricRow": "curve",
    "ProbeReport": "probing",
    "ProfileRow": "profiling",
    "RunView": "views",
    "TrialContext": "trialfold",
    "TrialRow": "views",
    "TrialView": "views",
    "ValidationView": "views",
    "Wishes": "views",
    "compact": "compaction",
    "fold_experiment": "reading",
    "fold_facts": "reading",
    "fold_trial": "reading",
    "metric_columns": "columns",
    "probe": "probing",
    "trial_metrics": "reading",
    "trial_profile": "profiling",
    "view_trial": "reading",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)
