"""The evidence about a waiting job: a few answers of the cluster, none older than a minute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from detslurm.sdk.waiting.explanation import UserAhead
from detslurm.slurm import JobInfo, NodeInfo, SlurmError
from detslurm.slurm.pending_details import PendingDetails
from detslurm.slurm.reasons import reason_of
from detslurm.store import Store, StoreError, fs

if TYPE_CHECKING:
    from detslurm.sdk.jobs.job import Job
    from detslurm.slurm import Cluster

Answer = TypeVar("Answer")
_KEPT: Final = 60.0  # seconds
# Jobs that wait for one of these will not take the next free resources.
_ELSEWHERE = frozenset({"held", "dependency", "quota"})
_APART = frozenset({"BeginTime", "Reservation"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that an explanation rests on, with times in unix seconds. Missing facts are empty.

    Attributes:
        ahead: The jobs that Slurm considers before it, and that wait for resources as it does.
        not_counted: How many more have a higher priority, but wait for something else.
        as_of: When the oldest of the answers was given.
    """

    job: Job
    queue: Sequence[JobInfo]
    ahead: Sequence[JobInfo] = ()
    not_counted: int = 0
    nodes: Sequence[NodeInfo] = ()
    details: PendingDetails = field(default_factory=PendingDetails)
    now: float
    as_of: float
    unavailable: tuple[str, ...] = ()

    @property
    def row(self) -> JobInfo:
        """The job's row of the queue."""
        return self.job.parts[0]

    @property
    def users_ahead(self) -> tuple[UserAhead, ...]:
        """The users of the jobs ahead, the user with the most slots first."""
        jobs, slots = Counter[str](), Counter[str]()
        for job in self.ahead:
            jobs[job.user] += job.count
            slots[job.user] += job.slots * job.count
        found = (UserAhead(user, jobs[user], slots[user]) for user in jobs)
        return tuple(sorted(found, key=lambda ahead: (-ahead.slots, ahead.user)))


class _Entry(msgspec.Struct):
    time: float
    answer: msgspec.Raw


class AnswerCache:
    """A cluster's answers of the last minute, for all processes of a user: a rebuildable file in
    the `store`, if there is one. With `refresh` the cluster is asked again for everything.

    Attributes:
        oldest: When the oldest of the answers that were used was given.
        was_used: Whether an answer was one from before.
    """

    def __init__(self, store: Store, *, refresh: bool = False) -> None:
        self._store = store
        now = time.time()
        known = {} if refresh else load_own(store, "queue.json", dict[str, _Entry], {})
        self._entries = {k: e for k, e in known.items() if 0 <= now - e.time < _KEPT}
        self.oldest, self.was_used = now, False

    def get(self, key: str, kind: type[Answer], ask: Callable[[], Answer]) -> Answer:
        """The answer of the type `kind` to the question `key`: a recent answer, or `ask`'s."""
        if entry := self._entries.get(key):
            try:
                found = msgspec.json.decode(entry.answer, type=kind)
            except ValueError:
                pass  # another version wrote it
            else:
                self.oldest, self.was_used = min(self.oldest, entry.time), True
                return found
        answer = ask()
        self._entries[key] = _Entry(time.time(), msgspec.Raw(msgspec.json.encode(answer)))
        save_own(self._store, "queue.json", self._entries)
        return answer


def gather(
    job: Job, jobs: Sequence[Job], cluster: Cluster, cache: AnswerCache, now: float
) -> Evidence:
    """Ask the cluster for what the job's reason calls for, with at most four calls."""
    row, queue = job.parts[0], _rows(jobs)
    if not row.waiting:
        return Evidence(job=job, queue=queue, now=now, as_of=cache.oldest)
    before = [other for other in _rows(jobs[: job.position]) if _is_rival(other, row)]
    ahead = [other for other in before if _competes(other)]
    ref, rival = row.refs[0], ahead[0].refs[0] if ahead else None
    missing: list[str] = []
    nodes: list[NodeInfo] = []
    if not row.reason or reason_of(row.reason).category == "resources":
        try:
            nodes = cache.get(f"nodes {cluster.name}", list[NodeInfo], cluster.nodes)
        except SlurmError as error:
            missing.append(f"the nodes ({error.message.splitlines()[0]})")
    details = cache.get(
        f"details {cluster.name} {ref} {row.reason} {rival}",
        PendingDetails,
        lambda: cluster.pending_details(row, ref, rival),
    )
    return Evidence(
        job=job,
        queue=queue,
        ahead=ahead,
        not_counted=sum(other.count for other in before if not _competes(other)),
        nodes=nodes,
        details=details,
        now=now,
        as_of=cache.oldest,
        unavailable=(*missing, *details.unavailable),
    )


def _rows(jobs: Sequence[Job]) -> list[JobInfo]:
    return [row for job in jobs for row in job.parts]


def _is_rival(other: JobInfo, row: JobInfo) -> bool:
    """Whether another job waits in the same partition."""
    shared = not set(row.partitions).isdisjoint(other.partitions)
    return other.waiting and other.job_id != row.job_id and shared


def _competes(job: JobInfo) -> bool:
    """Whether a job may take the next free resources."""
    reason = reason_of(job.reason)
    apart = reason.category in _ELSEWHERE or reason.code in _APART
    return not apart and not reason.permanent


def load_own(store: Store, name: str, kind: type[Answer], default: Answer) -> Answer:
    """The content of a user's own file in the store; the default where it can't be read."""
    try:
        data = fs.read_file(store.own(name))
        return default if data is None else msgspec.json.decode(data, type=kind)
    except (StoreError, ValueError):
        return default


def save_own(store: Store, name: str, content: object) -> None:
    """Write a user's own file; without a store, or the right to write, none."""
    if not fs.exists(store.path / "experiments", expected=True):
        return  # asking makes no store
    try:
        fs.replace_file(store.own(name), msgspec.json.encode(content), sync=False, secret=True)
    except StoreError:
        pass  # the next command asks again
