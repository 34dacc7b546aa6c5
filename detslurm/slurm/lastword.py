"""Why a job is being ended: slurmstepd says it in the job's output right before SIGTERM.

In that moment squeue and scontrol know `COMPLETING` only, and accounting may not exist. The line
costs no call to the controller, which matters when a thousand jobs are preempted at once.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

STDOUT = Path("/proc/self/fd/1")
_TAIL = 1 << 16
_RECENT = 600.0  # seconds; the same job may have been requeued before, with the same id

_CAUSES = {
    "": "cancelled",
    "PREEMPTION": "preempted",
    "TIME LIMIT": "time_limit",
    "JOB REQUEUE": "requeued",
    "NODE FAILURE": "node_failed",
}
_LINE = r"\*\*\* JOB {name} ON \S+ CANCELLED AT (\S+?)(?: DUE TO ([A-Z ]+?))? \*\*\*"


def why_ending(job: str, output: Path = STDOUT, now: float | None = None) -> str | None:
    """cancelled, preempted, time_limit, requeued or node_failed; None when nothing was said."""
    try:
        with output.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    return parse_last_word(text, job, time.time() if now is None else now)


def parse_last_word(text: str, job: str, now: float) -> str | None:
    """The last recent word about this job in a piece of its output."""
    said = list(re.finditer(_LINE.format(name=re.escape(job)), text))
    if not said or abs(now - _seconds(said[-1][1])) > _RECENT:
        return None
    return _CAUSES.get(said[-1][2] or "", "cancelled")


def last_word(job: str, host: str, cause: str, now: float) -> str:
    """The line itself, as the local cluster writes it."""
    due = next(said for said, meaning in _CAUSES.items() if meaning == cause)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    return f"*** JOB {job} ON {host} CANCELLED AT {at}{' DUE TO ' if due else ''}{due} ***\n"


def _seconds(stamp: str) -> float:
    try:
        return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return 0.0
