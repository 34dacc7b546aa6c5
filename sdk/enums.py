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

    States that need a master never occur, but scripts may name them: `STOPPING_COMPLETED`,
    `STOPPING_ERROR`, `DELETING`, `DELETE_FAILED`, `QUEUED` and `RUNNING` (here ACTIVE), `PULLING`
    and `STARTING`.

    Attributes:
        ACTIVE: Its trials run or wait for their turn.
        PAUSED: Nothing starts until it is activated.
        STOPPING_CANCELED: It was canceled, and its trials are about to leave.
        STOPPING_KILLED: It was killed, and its jobs are about to end.
        COMPLETED: It is over, and at least one trial has completed.
        CANCELED: It was stopped before it was over.
        ERROR: It is over, and no trial has completed.
        DELETED: Its files are removed.
        UNKNOWN: A newer version of detslurm has written a state that this one does not know.
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

    States that need a master never occur, but scripts may name them: `ACTIVE` (here QUEUED or
    RUNNING), `STOPPING_CANCELED`, `STOPPING_KILLED`, `STOPPING_COMPLETED`, `STOPPING_ERROR`,
    `PULLING` and `STARTING`.

    Attributes:
        PAUSED: It waits until its experiment is activated, or its search promotes it.
        CANCELED: It was stopped.
        COMPLETED: Its code has ended in order.
        ERROR: It failed more often than `max_restarts` allows.
        QUEUED: It waits for its job.
        RUNNING: Its code runs.
        UNKNOWN: A file of it can't be read.
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
    """A checkpoint's state; it equals its name as text. `ACTIVE` and `ERROR` never occur: a
    checkpoint that is being written does not exist yet.

    Attributes:
        COMPLETED: All of it is there.
        DELETED: Its files are removed.
        PARTIALLY_DELETED: Some of its files are removed.
        UNKNOWN: Its storage can't be seen from here, or a newer version of detslurm has written a
            state that this one does not know.
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
    """The direction of a sorted list: `ASCENDING` (`ASC`), the smallest first, or `DESCENDING`
    (`DESC`), the greatest first."""

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
    """How much a line of a log matters, from least to most.

    Attributes:
        TRACE: Every step of something.
        DEBUG: Details that help to find a mistake.
        INFO: Events, and every line without a level.
        WARNING: A possible fault.
        ERROR: A fault; a traceback.
        CRITICAL: The end of the program.
    """

    TRACE = auto()
    DEBUG = auto()
    INFO = auto()
    WARNING = auto()
    ERROR = auto()
    CRITICAL = auto()
