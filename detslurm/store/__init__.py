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
    from detslurm.store.address import Address, current_address, node_name, publish_address
    from detslurm.store.best_validation import BestValidation
    from detslurm.store.checkpoint_index import CheckpointRow, SavedCheckpoints, row_of
    from detslurm.store.checkpoint_links import Links, correct_links, links_of
    from detslurm.store.chunks import ChunkQueue, ChunkWorker
    from detslurm.store.columns import Columns, column_name, in_lists, metric_columns
    from detslurm.store.compaction import compact
    from detslurm.store.container_facts import ContainerFacts, InsideFacts
    from detslurm.store.curve import MetricRow, as_float, flat, is_number
    from detslurm.store.energy import SLURM, Energy
    from detslurm.store.event_log import EventLog, Events, logged_events
    from detslurm.store.experiment_files import open_shown
    from detslurm.store.experiment_fold import ExperimentFacts, experiment_view
    from detslurm.store.facts import FactLog, is_newer, put_record, read_record, refuse_newer
    from detslurm.store.finished_rows import FinishedRows
    from detslurm.store.history import read_continued, write_history
    from detslurm.store.index import STALE_AFTER, Catalog, is_final
    from detslurm.store.objectives import SeveralObjectives, objectives_of
    from detslurm.store.probing import Check, ProbeReport, mount_of, probe
    from detslurm.store.profiling import ProfileRow, trial_profile
    from detslurm.store.reading import (
        fold_experiment,
        fold_facts,
        fold_trial,
        trial_metrics,
        view_trial,
    )
    from detslurm.store.records import Job
    from detslurm.store.run_log import lines_of
    from detslurm.store.run_series import LoggedRuns, SeriesCache, read_runs
    from detslurm.store.selftest_facts import NodeAnswer, NodeFacts, NodesFacts
    from detslurm.store.series import Series, logged_series
    from detslurm.store.software import loaded_modules, software_here, software_of
    from detslurm.store.spending import Spending
    from detslurm.store.time_parts import Advice
    from detslurm.store.trial import with_history
    from detslurm.store.trial_fold import FoldContext
    from detslurm.store.trial_time import TimedRun, TrainingTime, training_time
    from detslurm.store.used_resources import UsedResources, recall_used, remember_used
    from detslurm.store.views import (
        UNCATEGORIZED,
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
    "SLURM",
    "STALE_AFTER",
    "UNCATEGORIZED",
    "Address",
    "Advice",
    "BestValidation",
    "Catalog",
    "Check",
    "CheckpointRow",
    "CheckpointView",
    "ChunkQueue",
    "ChunkWorker",
    "Columns",
    "ContainerFacts",
    "CorruptRecord",
    "DesiredState",
    "Energy",
    "EventLog",
    "Events",
    "ExperimentDir",
    "ExperimentFacts",
    "ExperimentRow",
    "ExperimentView",
    "FactLog",
    "FinishedRows",
    "FoldContext",
    "InsideFacts",
    "Job",
    "Links",
    "LoggedRuns",
    "MetricRow",
    "NoHardLinks",
    "NodeAnswer",
    "NodeFacts",
    "NodesFacts",
    "NotFound",
    "ProbeReport",
    "Problem",
    "ProfileRow",
    "Run",
    "RunLog",
    "RunTaken",
    "RunView",
    "SavedCheckpoints",
    "Series",
    "SeriesCache",
    "SeveralObjectives",
    "Spending",
    "Store",
    "StoreError",
    "StoreFault",
    "StoreFull",
    "TimedRun",
    "TrainingTime",
    "TrialDir",
    "TrialEnded",
    "TrialRow",
    "TrialView",
    "UsedResources",
    "ValidationView",
    "as_float",
    "column_name",
    "compact",
    "correct_links",
    "current_address",
    "experiment_view",
    "flat",
    "fold_experiment",
    "fold_facts",
    "fold_trial",
    "in_lists",
    "is_final",
    "is_newer",
    "is_number",
    "lines_of",
    "links_of",
    "loaded_modules",
    "logged_events",
    "logged_series",
    "metric_columns",
    "mount_of",
    "node_name",
    "objectives_of",
    "open_shown",
    "probe",
    "publish_address",
    "put_record",
    "read_continued",
    "read_record",
    "read_records",
    "read_runs",
    "recall_used",
    "refuse_newer",
    "remember_used",
    "row_of",
    "software_here",
    "software_of",
    "training_time",
    "trial_metrics",
    "trial_profile",
    "view_trial",
    "with_history",
    "write_history",
]

# Node agents need none of this, runners and most commands little: imported on first use.
_HOMES = {
    "address": ("Address", "current_address", "node_name", "publish_address"),
    "best_validation": ("BestValidation",),
    "checkpoint_index": ("CheckpointRow", "SavedCheckpoints", "row_of"),
    "checkpoint_links": ("Links", "correct_links", "links_of"),
    "chunks": ("ChunkQueue", "ChunkWorker"),
    "columns": ("Columns", "column_name", "in_lists", "metric_columns"),
    "compaction": ("compact",),
    "container_facts": ("ContainerFacts", "InsideFacts"),
    "curve": ("MetricRow", "as_float", "flat", "is_number"),
    "energy": ("Energy", "SLURM"),
    "event_log": ("EventLog", "Events", "logged_events"),
    "experiment_files": ("open_shown",),
    "experiment_fold": ("ExperimentFacts", "experiment_view"),
    "facts": ("FactLog", "is_newer", "put_record", "read_record", "refuse_newer"),
    "finished_rows": ("FinishedRows",),
    "history": ("read_continued", "write_history"),
    "index": ("Catalog", "STALE_AFTER", "is_final"),
    "objectives": ("SeveralObjectives", "objectives_of"),
    "probing": ("Check", "ProbeReport", "mount_of", "probe"),
    "profiling": ("ProfileRow", "trial_profile"),
    "reading": ("fold_experiment", "fold_facts", "fold_trial", "trial_metrics", "view_trial"),
    "records": ("Job",),
    "run_log": ("lines_of",),
    "run_series": ("LoggedRuns", "SeriesCache", "read_runs"),
    "selftest_facts": ("NodeAnswer", "NodeFacts", "NodesFacts"),
    "series": ("Series", "logged_series"),
    "software": ("loaded_modules", "software_here", "software_of"),
    "spending": ("Spending",),
    "time_parts": ("Advice",),
    "trial": ("with_history",),
    "trial_fold": ("FoldContext",),
    "trial_time": ("TimedRun", "TrainingTime", "training_time"),
    "used_resources": ("UsedResources", "recall_used", "remember_used"),
    "views": (
        "CheckpointView",
        "DesiredState",
        "ExperimentRow",
        "ExperimentView",
        "RunView",
        "TrialRow",
        "TrialView",
        "UNCATEGORIZED",
        "ValidationView",
    ),
}


__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
