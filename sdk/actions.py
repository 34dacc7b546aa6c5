"""What the user's intents do in the queue; the intent itself is a fact and is written first.

A runner reads the intents when it starts and now and then, so that acting on the queue only makes
it come true at once. But for `release`: what is held has no runner.
"""

from __future__ import annotations

from collections.abc import Iterable

from detslurm.sdk.job_status import JobRef
from detslurm.sdk.queues import Queues
from detslurm.slurm import Cluster


def _by_cluster(job_refs: Iterable[JobRef], *, whole: bool) -> dict[str, list[str]]:
    """Cluster -> refs; whole jobs and arrays keep the calls short."""
    found: dict[str, dict[str, None]] = {}
    for job_ref in job_refs:
        found.setdefault(job_ref.cluster, {})[job_ref.job_id if whole else job_ref.ref] = None
    return {name: list(refs) for name, refs in found.items()}


def pause(job_refs: Iterable[JobRef], queues: Queues, *, runners: bool = True) -> None:
    """Keep what waits from starting; let what runs checkpoint, leave and hold itself."""
    for name, refs in _by_cluster(job_refs, whole=True).items():

        def act(cluster: Cluster, refs: list[str] = refs) -> None:
            cluster.hold(refs)
            cluster.notify(refs, steps=not runners)

        queues.act(name, f"hold {_named(refs)}", act)


def release(job_refs: Iterable[JobRef], queues: Queues) -> bool:
    """Let what is held start; False where a queue refuses, and it stays held."""
    done = True
    for name, refs in _by_cluster(job_refs, whole=True).items():

        def act(cluster: Cluster, refs: list[str] = refs) -> None:
            cluster.release(refs)

        done &= queues.act(name, f"release {_named(refs)}", act)
    return done


def cancel(job_refs: Iterable[JobRef], queues: Queues, *, runners: bool = True) -> None:
    """Take what waits out of the queue; let what runs checkpoint and leave."""
    for name, refs in _by_cluster(job_refs, whole=True).items():

        def act(cluster: Cluster, refs: list[str] = refs) -> None:
            cluster.cancel(refs, pending_only=True)
            cluster.notify(refs, steps=not runners)

        queues.act(name, f"cancel {_named(refs)}", act)


def notify(job_refs: Iterable[JobRef], queues: Queues) -> None:
    """Let exactly these jobs read the intents now."""
    for name, refs in _by_cluster(job_refs, whole=False).items():

        def act(cluster: Cluster, refs: list[str] = refs) -> None:
            cluster.notify(refs)

        queues.act(name, f"notify {_named(refs)}", act)


def kill(job_refs: Iterable[JobRef], queues: Queues, *, whole: bool = True) -> None:
    """End whole jobs, or exactly these elements."""
    for name, refs in _by_cluster(job_refs, whole=whole).items():

        def act(cluster: Cluster, refs: list[str] = refs) -> None:
            cluster.cancel(refs)

        queues.act(name, f"kill {_named(refs)}", act)


def change(job_refs: Iterable[JobRef], queues: Queues, **fields: str | int) -> None:
    """Change fields of queued jobs."""
    for name, refs in _by_cluster(job_refs, whole=True).items():

        def act(cluster: Cluster, refs: list[str] = refs) -> None:
            for ref in refs:
                cluster.update(ref, **fields)

        queues.act(name, f"change {_named(refs)}", act)


def _named(refs: list[str]) -> str:
    return f"job {refs[0]}" if len(refs) == 1 else f"{len(refs)} jobs"
