"""What all findings about a wait are made of, and the words for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from detslurm.sdk.waiting.spans import span

if TYPE_CHECKING:
    from detslurm.slurm.queued_job import QueuedJob

SHOWN: Final = 3
"""How many of each kind of thing are named."""


@dataclass(frozen=True, slots=True)
class WaitFinding:
    """Why a job waits, and what shows it.

    Attributes:
        cause: The end of a sentence that begins with the job.
        remedy: What would help, in a sentence; empty where it can only wait.
        permanent: Whether it never starts unless somebody changes something.
        lines: The evidence, a line each.
    """

    cause: str
    remedy: str = ""
    permanent: bool = False
    lines: tuple[str, ...] = ()


def held_by(holders: Iterable[QueuedJob]) -> Iterator[str]:
    """Who holds what the job waits for; the first to end comes first."""
    found = sorted(holders, key=lambda job: (job.time_left is None, job.time_left or 0))
    named = [
        f"{job.ref} of {job.user}"
        + ("" if job.time_left is None else f" (ends in {span(job.time_left)} at the latest)")
        for job in found[:SHOWN]
    ]
    if named:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield f"in use by {', '.join(named)}{more}"
