"""The crash-safe state store on a shared file system: facts, claims, run logs and their folds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detslurm._base.lazy import lazy_names
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
from detslurm.store.run_log import RunLog, read_records
from detslurm.store.store import Store
from detslurm.store.trial import Run, TrialDir

if TYPE_CHECKING:
    from detslurm.store.columns import Columns, metric_columns
    from detslurm.store.compaction import compact
    from detslurm.store.curve import MetricRow
    from detslurm.store.event_log import EventLog
    from detslurm.store.experiment_fold import ExperimentFacts
    from detslurm.store.probing import Check, ProbeReport, probe
    from detslurm.store.profiling import ProfileRow, trial_profile
    from detslurm.store.reading import (
        fold_experiment,
        fold_facts,
        fold_trial,
        trial_metrics,
        view_trial,
    )
    from detslurm.store.records import Job
    from detslurm.store.trial_fold import FoldContext
    from detslurm.store.views import (
        CheckpointView,
        DesiredState,
        ExperimentRow,
        ExperimentView,
        RunView,
        TrialRow,
        TrialView,
        ValidationView,
    )

__all__ = [
    "Check",
    "CheckpointView",
    "Columns",
    "CorruptRecord",
    "DesiredState",
    "EventLog",
    "ExperimentDir",
    "ExperimentFacts",
    "ExperimentRow",
    "ExperimentView",
    "FoldContext",
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
    "TrialDir",
    "TrialEnded",
    "TrialRow",
    "TrialView",
    "ValidationView",
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
_HOMES = {
    "columns": ("Columns", "metric_columns"),
    "compaction": ("compact",),
    "curve": ("MetricRow",),
    "event_log": ("EventLog",),
    "experiment_fold": ("ExperimentFacts",),
    "probing": ("Check", "ProbeReport", "probe"),
    "profiling": ("ProfileRow", "trial_profile"),
    "reading": ("fold_experiment", "fold_facts", "fold_trial", "trial_metrics", "view_trial"),
    "records": ("Job",),
    "trial_fold": ("FoldContext",),
    "views": (
        "CheckpointView",
        "DesiredState",
        "ExperimentRow",
        "ExperimentView",
        "RunView",
        "TrialRow",
        "TrialView",
        "ValidationView",
    ),
}


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
