"""The crash-safe state store on a shared file system: facts, claims, run logs and their folds."""

from detslurm.store.curve import MetricRow
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
from detslurm.store.experimentfold import ExperimentFacts
from detslurm.store.reading import fold_experiment, fold_facts, fold_trial, trial_metrics
from detslurm.store.runlog import RunLog, read_records
from detslurm.store.store import Store
from detslurm.store.trial import Run, TrialDir
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
    "CheckpointView",
    "CorruptRecord",
    "ExperimentDir",
    "ExperimentFacts",
    "ExperimentRow",
    "ExperimentView",
    "Job",
    "MetricRow",
    "NoHardLinks",
    "NotFound",
    "Problem",
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
    "fold_experiment",
    "fold_facts",
    "fold_trial",
    "read_records",
    "trial_metrics",
]
