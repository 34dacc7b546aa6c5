"""States, and what lists can be sorted by: text that is checked, in Determined's words."""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import Self


class _Name(StrEnum):
    """Members whose value is their name."""

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name


class _State(_Name):
    """States, of which one is UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        return cls["UNKNOWN"]


class ExperimentState(_State):
    """An experiment's state; it equals its name as text.

    `ACTIVE`: trials run or wait; `PAUSED`; `STOPPING_CANCELED`, `STOPPING_KILLED`: jobs are about
    to end; `COMPLETED`: over, and a trial has completed; `CANCELED`; `ERROR`: over without such a
    trial; `DELETED`; `UNKNOWN`: of a newer version. Never here, because they need a master:
    `STOPPING_COMPLETED`, `STOPPING_ERROR`, `DELETING`, `DELETE_FAILED`, `QUEUED`, `PULLING`,
    `STARTING` and `RUNNING`.
    """

    ACTIVE = auto()
    PAUSED = auto()
    STOPPING_COMPLETED = auto()
    STOPPING_CANCELED = auto()
    STOPPING_ERROR = auto()
    STOPPING_KILLED = auto()
    COMPLETED = auto()
    CANCELED = auto()
    ERROR = auto()
    DELETED = auto()
    DELETING = auto()
    DELETE_FAILED = auto()
    QUEUED = auto()
    PULLING = auto()
    STARTING = auto()
    RUNNING = auto()
    UNKNOWN = auto()


class TrialState(_State):
    """A trial's state; it equals its name as text.

    `QUEUED`: waits for its job; `RUNNING`; `PAUSED`: until its experiment is activated or its
    search promotes it; `CANCELED`; `COMPLETED`; `ERROR`: failed more than `max_restarts` times;
    `UNKNOWN`: a file of it can't be read. Never here, because they need a master: `ACTIVE`,
    `STOPPING_CANCELED`, `STOPPING_KILLED`, `STOPPING_COMPLETED`, `STOPPING_ERROR`, `PULLING` and
    `STARTING`.
    """

    ACTIVE = auto()
    PAUSED = auto()
    STOPPING_CANCELED = auto()
    STOPPING_KILLED = auto()
    STOPPING_COMPLETED = auto()
    STOPPING_ERROR = auto()
    CANCELED = auto()
    COMPLETED = auto()
    ERROR = auto()
    QUEUED = auto()
    PULLING = auto()
    STARTING = auto()
    RUNNING = auto()
    UNKNOWN = auto()


class CheckpointState(_State):
    """A checkpoint's state; it equals its name as text.

    `COMPLETED`, `DELETED`, `PARTIALLY_DELETED`, or `UNKNOWN`: its storage can't be seen from here,
    or a newer version wrote it. `ACTIVE` and `ERROR` never occur.
    """

    ACTIVE = auto()
    COMPLETED = auto()
    ERROR = auto()
    DELETED = auto()
    PARTIALLY_DELETED = auto()
    UNKNOWN = auto()


class DownloadMode(_Name):
    """How Determined fetches a checkpoint; here `AUTO`, `DIRECT` and `MASTER` are the same."""

    AUTO = auto()
    DIRECT = auto()
    MASTER = auto()


class OrderBy(Enum):
    """The direction of a list: `ASCENDING` (`ASC`) or `DESCENDING` (`DESC`)."""

    ASCENDING = "ASCENDING"
    ASC = ASCENDING
    DESCENDING = "DESCENDING"
    DESC = DESCENDING


class ExperimentSortBy(_Name):
    """The field that sorts a list of experiments: `ID`, `NAME`, `DESCRIPTION`, `START_TIME` (of the
    submission), `END_TIME` (of the last run), `STATE`, `NUM_TRIALS`, `PROGRESS`, `USER`,
    `RESOURCE_POOL`, `SEARCHER_METRIC_VAL` (the best), `CHECKPOINT_SIZE` (in bytes) or
    `CHECKPOINT_COUNT`."""

    ID = auto()
    NAME = auto()
    DESCRIPTION = auto()
    START_TIME = auto()
    END_TIME = auto()
    STATE = auto()
    NUM_TRIALS = auto()
    PROGRESS = auto()
    USER = auto()
    RESOURCE_POOL = auto()
    SEARCHER_METRIC_VAL = auto()
    CHECKPOINT_SIZE = auto()
    CHECKPOINT_COUNT = auto()


class TrialSortBy(_Name):
    """The field that sorts a list of trials: `ID`, `START_TIME` (of the first run), `END_TIME` (of
    the last run), `STATE`, `BEST_VALIDATION_METRIC` (or `SEARCHER_METRIC_VAL`),
    `LATEST_VALIDATION_METRIC`, `BATCHES_PROCESSED`, `DURATION` (from the first start to the last
    end, or to now), `RESTARTS` or `CHECKPOINT_SIZE` (in bytes)."""

    ID = auto()
    START_TIME = auto()
    END_TIME = auto()
    STATE = auto()
    BEST_VALIDATION_METRIC = auto()
    LATEST_VALIDATION_METRIC = auto()
    BATCHES_PROCESSED = auto()
    DURATION = auto()
    RESTARTS = auto()
    CHECKPOINT_SIZE = auto()
    SEARCHER_METRIC_VAL = auto()


class ModelSortBy(_Name):
    """The field that sorts a list of models: `ID`, `NAME`, `DESCRIPTION`, `CREATION_TIME`,
    `LAST_UPDATED_TIME` (a change of a version counts), `NUM_VERSIONS` or `WORKSPACE`."""

    ID = auto()
    NAME = auto()
    DESCRIPTION = auto()
    CREATION_TIME = auto()
    LAST_UPDATED_TIME = auto()
    NUM_VERSIONS = auto()
    WORKSPACE = auto()


class CheckpointSortBy(_Name):
    """The field that sorts a list of checkpoints: `UUID`, `TRIAL_ID`, `BATCH_NUMBER`, `END_TIME`
    (when it was written), `STATE`, or `SEARCHER_METRIC` (of a validation at the same step)."""

    UUID = auto()
    TRIAL_ID = auto()
    BATCH_NUMBER = auto()
    END_TIME = auto()
    STATE = auto()
    SEARCHER_METRIC = auto()


class LogLevel(_Name):
    """How much a line of a log matters, from least to most: `TRACE`, `DEBUG`, `INFO` (also lines
    without a level), `WARNING`, `ERROR` (tracebacks, too) or `CRITICAL`."""

    TRACE = auto()
    DEBUG = auto()
    INFO = auto()
    WARNING = auto()
    ERROR = auto()
    CRITICAL = auto()
