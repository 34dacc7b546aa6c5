"""Changes of queued jobs: as they are written (`4711.priority=10`), refused, made, read back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detslurm._base.access import user_name
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.jobs import order
from detslurm.sdk.jobs.order import Rank, competing, place_of, waiting
from detslurm.sdk.jobs.queues import compressed
from detslurm.slurm import SlurmError
from detslurm.slurm.priority import FIRST, LAST, nice_of, priority_of_weight

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.jobs.job import Job
    from detslurm.sdk.jobs.order import QueuePlace
    from detslurm.slurm import Cluster

# Ages grow and other commands act meanwhile: an order that was missed is computed again.
_ATTEMPTS = 3
_DENIED = ("invalid user id", "access/permission denied")
Value = int | float | str | None
_ARRAY = re.compile(r"(\d{1,15})(?:_\[[\d,%-]+\])?")
_ELEMENT = re.compile(r"(\d{1,15})_\d+")
_WRITTEN = re.compile(r"([^.=]+)\.([\w-]+)=(.*)", re.DOTALL)
_WORD = re.compile(r"[\w.,:@+-]+")


@dataclass(frozen=True, slots=True)
class QueueChange:
    """One change of a job, or of the waiting elements of an array; the value None is no limit."""

    job_id: str
    name: str
    value: Value

    @property
    def anchor(self) -> str | None:
        """The job that this job is to be put ahead of or behind; None for other changes."""
        return str(self.value) if self.name in ("ahead-of", "behind-of") else None


def job_number(text: str) -> str:
    """The id of a job or an array, also as a list shows it: `4711_[3-9]`. Raises ValueError."""
    if match := _ARRAY.fullmatch(text.strip()):
        return str(int(match[1]))
    if match := _ELEMENT.fullmatch(text.strip()):
        raise ValueError(
            f"{text} is one element of an array, whose elements wait as one job: change {match[1]}"
        )
    raise ValueError(f"{text!r} is not the id of a job, such as 4711")


def job_change(job_id: str, name: str, value: str) -> QueueChange:
    """The change of one job. Raises ValueError with the fault."""
    name = name.lower().replace("_", "-")
    if name not in _VALUES:
        raise ValueError(f"{name!r} can't be changed of a job; there are {', '.join(_VALUES)}")
    return QueueChange(job_number(job_id), name, _VALUES[name](value.strip()))


def parse(texts: Iterable[str]) -> list[QueueChange]:
    """The changes written as `ID.NAME=VALUE`. Raises ValueError with all that is wrong in them."""
    found: list[QueueChange] = []
    wrong: list[str] = []
    for text in texts:
        try:
            found.append(_parsed(text))
        except ValueError as error:
            wrong.append(f"{text}: {error}")
    wrong += conflicts(found)
    if wrong:
        raise ValueError("\n".join(wrong))
    return found


def _parsed(text: str) -> QueueChange:
    match = _WRITTEN.fullmatch(text.strip())
    if not match:
        raise ValueError("a change is written ID.NAME=VALUE, such as 4711.priority=10")
    return job_change(*match.groups())


def conflicts(changes: Iterable[QueueChange]) -> list[str]:
    """The conflicts of some changes."""
    seen: dict[tuple[str, str], QueueChange] = {}
    wrong = []
    for one in changes:
        other = seen.setdefault((one.job_id, _KINDS.get(one.name, one.name)), one)
        if other is not one:
            both = f"{other.name} and {one.name} are mutually exclusive"
            same = f"{one.name} is given twice"
            wrong.append(f"job {one.job_id}: {same if other.name == one.name else both}")
    return wrong


_KINDS = {"priority": "rank", "weight": "rank", "ahead-of": "order", "behind-of": "order"}


def _priority(text: str) -> int:
    if not text.isdecimal() or not FIRST <= int(text) <= LAST:
        raise ValueError(f"priority is {FIRST} (first) to {LAST} (last), not {text!r}")
    return int(text)


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"weight is a positive number, not {text!r}")
    return weight


def _slots(text: str) -> int | None:
    if text.lower() in ("none", "null"):
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"max-slots is a whole number from 1, or none, not {text!r}")
    return int(text)


def _name(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError(f"{text!r} is not a name")
    return text


_VALUES: dict[str, Callable[[str], Value]] = {
    "priority": _priority,
    "weight": _weight,
    "resource-pool": _name,
    "qos": _name,
    "max-slots": _slots,
    "ahead-of": job_number,
    "behind-of": job_number,
}


def changes_of(job_id: str, given: dict[str, str]) -> list[QueueChange]:
    """Changes of one job by name. Raises LifecycleError for a faulty change."""
    try:
        found = [job_change(job_id, name, value) for name, value in given.items()]
    except ValueError as error:
        raise LifecycleError(str(error)) from None
    if not found:
        raise LifecycleError(f"nothing is to be changed of job {job_id}")
    if wrong := conflicts(found):
        raise LifecycleError("\n".join(wrong))
    return found


def refusal(jobs: Sequence[Job], change: QueueChange) -> str | None:
    """Why a change makes no sense as the queue is now, and what would work; None if it does."""
    job = waiting(jobs, change.job_id)
    if job is None:
        return _not_waiting(jobs, change.job_id)
    if change.anchor is None:
        return None
    return _held(job) or _order_refusal(jobs, job, change)


def _not_waiting(jobs: Iterable[Job], job_id: str) -> str:
    job = next((job for job in jobs if job.job_id == job_id), None)
    if job is None:
        return (
            f"there is no job {job_id} in this queue: it has ended, or it is in that of another"
            " cluster; `detslurm job list` shows the jobs"
        )
    if job.experiment_id is None:
        return f"job {job_id} runs already: its place in the queue can't be changed"
    return (
        f"job {job_id} runs already: its place in the queue can't be changed; `detslurm experiment"
        f" pause {job.experiment_id}` would return its slots"
    )


def _held(job: Job) -> str | None:
    if not job.held:
        return None
    how = f"scontrol release {job.job_id}"
    if job.experiment_id is not None:
        how = f"detslurm experiment activate {job.experiment_id}"
    return f"job {job.job_id} is held, and has no place until it is released: `{how}`"


def _order_refusal(jobs: Sequence[Job], job: Job, change: QueueChange) -> str | None:
    if change.anchor == job.job_id:
        return f"job {job.job_id} has no place ahead of itself, nor behind"
    anchor = waiting(jobs, str(change.anchor))
    if anchor is None:
        return _not_waiting(jobs, str(change.anchor))
    if anchor.user != job.user:
        return (
            f"job {anchor.job_id} belongs to {anchor.user}: only the site orders the jobs of"
            " different users; `detslurm job update"
            f" {job.job_id} --priority 1` gives yours all that you may"
        )
    if anchor.resource_pool != job.resource_pool:
        return (
            f"job {job.job_id} waits in {job.resource_pool}, job {anchor.job_id} in"
            f" {anchor.resource_pool}, and each partition has an order of its own; `detslurm job"
            f" update {job.job_id} --resource-pool {anchor.resource_pool}` brings them together"
        )
    return _held(anchor)


@dataclass(frozen=True, slots=True)
class Made:
    """Whether anything was changed, and the user's other jobs whose nice became greater for it."""

    changed: bool
    gave_way: tuple[str, ...] = ()


class QueueUpdate:
    """One queue, as it is while its jobs are changed."""

    def __init__(
        self,
        cluster: Cluster,
        listed: Callable[[], list[Job]],
        experiment: Callable[[int], Experiment],
    ) -> None:
        self._cluster, self._listed, self._experiment = cluster, listed, experiment
        self._jobs = listed()

    def check(self, changes: Iterable[QueueChange]) -> None:
        """Raise LifecycleError with all changes that can't be made; nothing was changed then."""
        wrong = [text for change in changes if (text := refusal(self._jobs, change))]
        if wrong:
            raise LifecycleError("\n".join(dict.fromkeys(wrong)))

    def make(self, change: QueueChange) -> Made:
        """Make one change. Raises LifecycleError if the cluster or the site refuses it."""
        self.check([change])
        before = {job.job_id: job.nice for job in self._jobs}
        changed = self._made(change)
        if change.anchor is None:
            return Made(changed)
        others = {job.job_id: job.nice for job in self._jobs if job.job_id != change.job_id}
        later = (job for job, nice in others.items() if (nice or 0) > (before.get(job, nice) or 0))
        return Made(changed, tuple(later))

    def _made(self, change: QueueChange) -> bool:
        job = waiting(self._jobs, change.job_id)
        assert job is not None  # or it was refused
        try:
            if change.anchor is not None:
                return self._move(job, change.anchor, ahead=change.name == "ahead-of")
            if job.experiment_id is not None and self._is_own(job):
                _change_experiment(self._experiment(job.experiment_id), change)
            else:
                self._change_job(job, change)
        except SlurmError as error:
            raise LifecycleError(self._sentence(job, change, error)) from error
        self._jobs = self._listed()
        return True

    def place(self, job_id: str) -> QueuePlace | None:
        """Where a job stands now; None if it waits no more."""
        return place_of(self._jobs, job_id, user_name())

    def experiment_id(self, job_id: str) -> int | None:
        """The experiment that a job works for."""
        return next((job.experiment_id for job in self._jobs if job.job_id == job_id), None)

    def _is_own(self, job: Job) -> bool:
        return job.user == user_name()

    def _change_job(self, job: Job, change: QueueChange) -> None:
        match change.name:
            case "priority":
                self._cluster.update(job.job_id, Nice=nice_of(int(str(change.value))))
            case "weight":
                nice = nice_of(priority_of_weight(float(str(change.value))))
                self._cluster.update(job.job_id, Nice=nice)
            case "resource-pool":
                self._cluster.update(_pending(self._jobs, job), Partition=str(change.value))
            case "qos":
                self._cluster.update(_pending(self._jobs, job), QOS=str(change.value))
            case "max-slots":
                raise LifecycleError(
                    f"job {job.job_id} is not an experiment's: `scontrol update"
                    f" JobId={job.job_id} ArrayTaskThrottle=N` limits how many elements of an array"
                    " run at once"
                )

    # -- order ------------------------------------------------------------------------------------

    def _move(self, job: Job, anchor: str, *, ahead: bool) -> bool:
        for attempt in range(_ATTEMPTS):
            ranks = [_rank(other) for other in competing(self._jobs, job)]
            ids = {rank.job_id for rank in ranks}
            if not {int(job.job_id), int(anchor)} <= ids:
                return attempt > 0  # either of them has started meanwhile
            wanted = order.moved(ranks, int(job.job_id), int(anchor), ahead=ahead)
            if wanted == order.in_order(ranks):
                return attempt > 0
            self._arrange(wanted, int(job.job_id))
            self._jobs = self._listed()
        raise LifecycleError(
            f"job {job.job_id} is still not {'ahead of' if ahead else 'behind'} job {anchor}: the"
            " cluster accepted the nice values, but orders by others"
        )

    def _arrange(self, wanted: list[Rank], job: int) -> None:
        """By the job's own nice; else as an operator may; else by `scontrol top`; else by those
        of the jobs behind it."""
        floor = None if self._cluster.name == "local" else order.LEAST_PRIORITY
        values = order.nice_values(wanted, job, least_priority=floor)
        if values is not None and values.keys() <= {job}:
            self._set_nice(values)
            return
        freely = order.nice_values(wanted, job, least_nice=None, least_priority=floor)
        if freely is not None and freely != values and self._permitted(freely):
            return
        if _lacks_priority(wanted, job) and self._permitted_top(job):
            return
        if values is None:
            raise LifecycleError(
                f"job {job} can't be moved: Slurm's priorities are too small here to be ordered"
                " by nice values; `sprio -w` shows what the site counts"
            )
        self._set_nice(values)

    def _permitted(self, values: Mapping[int, int]) -> bool:
        """Set nice values below 0, which operators may, first of all; False where they may not."""
        try:
            self._set_nice(values)
        except SlurmError as error:
            if _is_denied(error):
                return False
            raise
        return True

    def _permitted_top(self, job: int) -> bool:
        try:
            self._cluster.top(str(job))
        except SlurmError:
            return False
        return True

    def _set_nice(self, values: Mapping[int, int]) -> None:
        """The smallest first: what only an operator may is refused before anything is changed."""
        by_nice: dict[int, list[str]] = {}
        for job, nice in sorted(values.items(), key=lambda item: (item[1], item[0])):
            by_nice.setdefault(nice, []).append(str(job))
        for nice, jobs in by_nice.items():
            self._cluster.update(",".join(jobs), Nice=nice)

    # -- refusals ---------------------------------------------------------------------------------

    def _sentence(self, job: Job, change: QueueChange, error: SlurmError) -> str:
        if not self._is_own(job) and _is_denied(error):
            return (
                f"job {job.job_id} belongs to {job.user}, who alone may change it, besides the"
                " operators of the site"
            )
        what = f"job {job.job_id}: can't change {change.name}"
        if change.name == "resource-pool" and "invalid partition" in error.message.lower():
            known = ", ".join(self._cluster.limits().partitions)
            return f"{what}: there is no partition {change.value}; there are {known}"
        return f"{what}: {error}"


def _pending(jobs: Iterable[Job], job: Job) -> str:
    """All elements of a job's array that wait, as one reference: those that run can't be moved."""
    mine = [other for other in jobs if other.job_id == job.job_id and other.waiting]
    (ref,) = compressed(ref for other in mine for ref in other.refs)
    return ref


def _change_experiment(experiment: Experiment, change: QueueChange) -> None:
    """A setting of an experiment's job holds for all its jobs, and for those that follow."""
    setter = getattr(experiment, f"set_{change.name.replace('-', '_')}")
    setter(change.value)


def _lacks_priority(wanted: list[Rank], job: int) -> bool:
    """Whether a job that is to be the first is below the others even without any nice: they would
    lose what it lacks, and `scontrol top` gives it that instead."""
    first, second, *_ = wanted
    return first.job_id == job and first.with_nice(0).priority < second.priority


def _rank(job: Job) -> Rank:
    return Rank(int(job.job_id), job.slurm_priority or 0, job.nice or 0)


def _is_denied(error: SlurmError) -> bool:
    return any(text in error.message.lower() for text in _DENIED)
