"""Waiting jobs of a store that was moved: they name its old path, where they can't start."""

from __future__ import annotations

from pathlib import Path

from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.sdk.jobs.queues import Queues
from detslurm.sdk.jobs.status import QueueSnapshot


def cancel_stranded(one: ExperimentSnapshot, queue: QueueSnapshot, queues: Queues) -> QueueSnapshot:
    """Cancel the waiting jobs whose path is gone, and leave them out: others take their place."""
    if not one.facts.created.managed:  # a batch script of the user's own works anywhere
        return queue
    waiting = {ref: Path(job.folder) for ref, job in queue.jobs.items() if job.waiting}
    stranded = {ref: folder for ref, folder in waiting.items() if _is_gone(folder)}
    if not stranded:
        return queue
    queues.cancel(stranded)
    names = ", ".join(sorted({ref.job_id for ref in stranded}))
    path = next(iter(stranded.values())).parents[2]
    queues.warn(
        f"experiment {one.directory.id}: job {names} names {path}, where this store was before it"
        " was moved. It is cancelled, and a new job takes its place."
    )
    return queue._replace(jobs={r: job for r, job in queue.jobs.items() if r not in stranded})


def _is_gone(folder: Path) -> bool:
    """Whether the store of such a folder is gone from its directory; where that can't be seen, this
    host may have another name for it. An automounter lists only mounted directories."""
    if len(folder.parents) < 4:
        return False
    root = folder.parents[2]
    try:
        return not root.exists() and root.name not in {p.name for p in root.parent.iterdir()}
    except OSError:
        return False
