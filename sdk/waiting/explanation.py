"""An explanation of why a job waits, as it is returned."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from detslurm.slurm.reasons import Category


@dataclass(frozen=True, slots=True)
class UserAhead:
    """One user's jobs ahead, each element of an array one of them, and their slots together."""

    user: str
    jobs: int
    slots: int


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """When a job is expected to start: `time` by a `source` that worked it out when it was `made`,
    or, if it is not `scheduled`, a time that the job's user has set."""

    time: float
    source: str
    made: float
    scheduled: bool = True


@dataclass(frozen=True, slots=True)
class Accuracy:
    """By how many seconds the first estimates were off, for jobs that have started since."""

    jobs: int
    median_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A job like this that asks for something else, as the cluster judged it.

    Attributes:
        expected_start: When it would start; None if the cluster refuses it.
        sooner: By how many seconds that is sooner; None if there is nothing to compare it with.
        refusal: Why the cluster refuses it; "" if it does not.
        command: The command that changes the job so; "" if it must be submitted again.
    """

    change: str
    expected_start: float | None = None
    sooner: float | None = None
    refusal: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job waits, and what shows it. Times are unix seconds.

    Attributes:
        job_id: The job, such as "4711" or "4711_[3-9]".
        experiment_id: The experiment that it works for; None if it is not in this store.
        category: "quota", "resources", "held", "dependency" or "other"; None if it does not wait.
        reason: Slurm's word for it.
        remedy: A sentence of help; "" if it can only wait.
        permanent: Whether it never starts without a change.
        ahead: The users of the jobs that are considered before it.
        accuracy: How good such estimates have been here; None if no job has started since one.
        as_of: When the oldest of the answers was given that this rests on.
    """

    job_id: str
    state: str
    experiment_id: int | None
    trial_ids: tuple[int, ...]
    resource_pool: str
    submitted: float | None
    category: Category | None
    reason: str
    cause: str
    remedy: str = ""
    permanent: bool = False
    evidence: tuple[str, ...] = ()
    ahead: tuple[UserAhead, ...] = ()
    expected_start: StartEstimate | None = None
    accuracy: Accuracy | None = None
    sooner: tuple[Variant, ...] = ()
    as_of: float
    unavailable: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return asdict(self)
