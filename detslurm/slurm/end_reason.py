"""Why a job is being ended: slurmstepd writes it into the job's output right before SIGTERM.

In that moment squeue and scontrol know `COMPLETING` only, and accounting may not exist. The line
costs no call to the controller, which matters when a thousand jobs are preempted at once.

Lines about this very job count, behind the byte where the output ended when its runner began: a
requeued job and the elements of a local array append to one output. The first line with a cause
wins, because Slurm repeats a kill that a node did not answer, and that line has no cause. The time
in a line is ignored: it is in the time zone of the job's environment.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

_CAUSES = {
    "": "cancelled",
    "PREEMPTION": "preempted",
    "TIME LIMIT": "time_limit",
    "JOB REQUEUE": "requeued",
    "NODE FAILURE": "node_failed",
}
# Since 25.05 a plain scancel is `DUE to SIGNAL Terminated`; a node's failure has text behind it.
_LINE = re.compile(r"CANCELLED AT \S+(?: DUE (?:TO|to) ([A-Za-z ]+?)(?:,[^*]*)?)? \*\*\*")


def end_reason(job: str, output: Path, since: int = 0) -> str | None:
    """cancelled, preempted, time_limit, requeued or node_failed, by the output behind byte `since`.

    None when there is no such line, or its cause is not understood.
    """
    try:
        with output.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(since if since <= end else 0)  # it was emptied meanwhile
            printed = file.read()
    except OSError:
        return None
    about = rb"\*\*\* JOB %s ON \S+ (CANCELLED [^\n]*)" % re.escape(job.encode())
    causes = [cause_in(text.decode(errors="replace")) for text in re.findall(about, printed)]
    return next((c for c in causes if c != "cancelled"), "cancelled" if causes else None)


def cause_in(text: str) -> str | None:
    """The cause in slurmstepd's text behind the job's name and node; None for any other text."""
    match = _LINE.match(text)
    if not match:
        return None
    due = match[1] or ""
    return "cancelled" if due.startswith("SIGNAL ") else _CAUSES.get(due)


def end_line(job: str, host: str, cause: str, now: float) -> str:
    """The line itself, as the local cluster writes it."""
    due = next(text for text, meaning in _CAUSES.items() if meaning == cause)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    return f"*** JOB {job} ON {host} CANCELLED AT {at}{' DUE TO ' if due else ''}{due} ***\n"
