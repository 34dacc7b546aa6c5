"""The clusters behind a store's experiments: their knowledge of jobs, and changes of jobs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from detslurm.sdk.jobs.status import JobRef, QueueSnapshot
from detslurm.slurm import Cluster, JobInfo, SlurmError

Connect = Callable[[str], Cluster]
Clock = Callable[[], float]

# Centres forbid polling the controller: the loops of all users together would overload it.
QUEUE_SECONDS: Final = 30.0


def connector(root: Path) -> Connect:
    """How to reach a cluster by name; a local cluster belongs to the store at `root`."""

    def connect(name: str) -> Cluster:
        from detslurm.slurm import detect_cluster

        return detect_cluster(name, root=root)

    return connect


class Queues:
    """Clusters by name, connected on first use; what they refuse becomes a warning, no error."""

    def __init__(self, connect: Connect, warn: Callable[[str], None]) -> None:
        self._connect = connect
        self.warn = warn
        self._clusters: dict[str, Cluster] = {}

    def cluster(self, name: str) -> Cluster:
        """The cluster of that name, or SlurmError."""
        if name not in self._clusters:
            self._clusters[name] = self._connect(name)
        return self._clusters[name]

    def listing(self, name: str, partition: str | None = None) -> list[JobInfo]:
        """All jobs of a cluster, or of a partition, that wait or run. Raises SlurmError."""
        return self.cluster(name).queue(partition=partition)

    def query(
        self,
        wanted: Iterable[JobRef],
        *,
        since: float | None = None,
        queue_only: Iterable[JobRef] = (),
    ) -> QueueSnapshot:
        """The queues' rows of these jobs: one query a cluster, then evidence for missing jobs, but
        for those in `queue_only`. `unreachable` has the clusters that do not answer."""
        jobs: dict[JobRef, JobInfo] = {}
        unreachable: set[str] = set()
        sure, more = _by_cluster(wanted), _by_cluster(queue_only)
        for name in {**sure, **more}:
            try:
                jobs.update(
                    self._query_cluster(name, sure.get(name, []), more.get(name, []), since)
                )
            except SlurmError as error:
                unreachable.add(name)
                why = error.message.rpartition("\n")[2]
                self.warn(
                    f"{name} does not answer; states are as of the store's last record ({why})"
                )
        return QueueSnapshot(jobs, frozenset(unreachable))

    def _query_cluster(
        self,
        name: str,
        job_refs: Collection[JobRef],
        queue_only: Collection[JobRef],
        since: float | None,
    ) -> dict[JobRef, JobInfo]:
        refs = {job_ref.ref for job_ref in job_refs}
        found = self._jobs(name, sorted({job.job_id for job in (*job_refs, *queue_only)}))
        missing = sorted(refs - found.keys())
        if missing:
            try:
                found = {**self._ends(name, missing, since), **found}
            except SlurmError as error:
                self.warn(f"{name} can't report how jobs ended: {error.message}")
        refs |= {job_ref.ref for job_ref in queue_only}
        return {JobRef(name, ref): found[ref] for ref in refs & found.keys()}

    def _jobs(self, name: str, job_ids: Collection[str]) -> dict[str, JobInfo]:
        return self.cluster(name).query(job_ids)

    def _ends(self, name: str, refs: Collection[str], since: float | None) -> Mapping[str, JobInfo]:
        return self.cluster(name).evidence(refs, since=since)

    def act(self, name: str, what: str, action: Callable[..., object], *args: object) -> bool:
        """Do something in a queue. A refusal becomes a warning, for the intent is recorded."""
        try:
            action(self.cluster(name), *args)
        except SlurmError as error:
            self.warn(f"{name}: can't {what} now: {error}")
            return False
        return True

    # -- actions ----------------------------------------------------------------------------------
    # The user's intent is recorded before; these make it take effect at once.
    # A runner that starts, or reads the facts, finds the intent without this. But for `release`:
    # a held job has no runner.

    def pause(self, job_refs: Iterable[JobRef], *, runners: bool = True) -> None:
        """Hold pending jobs; let running ones checkpoint, exit and hold themselves."""

        def act(cluster: Cluster, refs: list[str]) -> None:
            cluster.hold(refs)
            cluster.notify(refs, steps=not runners)

        self._act_on(job_refs, "hold", act)

    def release(self, job_refs: Iterable[JobRef]) -> bool:
        """Let held jobs start; False if a queue refuses, and they stay held."""
        return self._act_on(job_refs, "release", lambda cluster, refs: cluster.release(refs))

    def cancel(self, job_refs: Iterable[JobRef], *, runners: bool = True) -> None:
        """Cancel pending jobs; let running ones checkpoint and exit."""

        def act(cluster: Cluster, refs: list[str]) -> None:
            cluster.cancel(refs, pending_only=True)
            cluster.notify(refs, steps=not runners)

        self._act_on(job_refs, "cancel", act)

    def notify(self, job_refs: Iterable[JobRef]) -> None:
        """Let the runners of exactly these jobs read the facts now."""
        self._act_on(job_refs, "notify", lambda cluster, refs: cluster.notify(refs), whole=False)

    def kill(self, job_refs: Iterable[JobRef], *, whole: bool = True) -> None:
        """End whole jobs, or exactly these elements."""
        self._act_on(job_refs, "kill", lambda cluster, refs: cluster.cancel(refs), whole=whole)

    def change(self, job_refs: Iterable[JobRef], **fields: str | int) -> None:
        """Change fields of queued jobs; a refused job keeps no other from being changed."""

        def act(cluster: Cluster, job_id: str) -> None:
            cluster.update(job_id, **fields)

        for name, job_id in dict.fromkeys((job.cluster, job.job_id) for job in job_refs):
            self.act(name, f"change job {job_id}", act, job_id)

    def update(self, job_refs: Iterable[JobRef], **fields: str | int) -> None:
        """Change fields of exactly these jobs and elements. Raises SlurmError at a refusal."""
        for name, found in _by_cluster(job_refs).items():
            for ref in compressed(job.ref for job in found):
                self.cluster(name).update(ref, **fields)

    def _act_on(
        self,
        job_refs: Iterable[JobRef],
        what: str,
        action: Callable[[Cluster, list[str]], None],
        *,
        whole: bool = True,
    ) -> bool:
        """One call a cluster; `whole` jobs and arrays keep the calls short."""
        done = True
        for name, found in _by_cluster(job_refs).items():
            refs = list(dict.fromkeys(job.job_id if whole else job.ref for job in found))
            named = f"job {refs[0]}" if len(refs) == 1 else f"{len(refs)} jobs"
            done &= self.act(name, f"{what} {named}", action, refs)
        return done


def compressed(refs: Iterable[str]) -> list[str]:
    """References of jobs and elements, the elements of an array as one: `4711_[0,3-9]`."""
    from detslurm.slurm.hostlist import compress_indices

    indices: dict[str, list[int]] = {}
    for job, _, index in (ref.partition("_") for ref in refs):
        indices.setdefault(job, []).extend([int(index)] if index else [])
    return [
        f"{job}_[{compress_indices(sorted(found))}]" if found else job
        for job, found in indices.items()
    ]


def _by_cluster(job_refs: Iterable[JobRef]) -> dict[str, list[JobRef]]:
    found: dict[str, list[JobRef]] = {}
    for job_ref in job_refs:
        found.setdefault(job_ref.cluster, []).append(job_ref)
    return found
