"""Why a job is being ended: slurmstepd writes it into the job's output right before SIGTERM.

In that moment squeue and scontrol know `COMPLETING` only, and accounting may not exist. The line
costs no call to the controller, which matters when a thousand jobs are preempted at once.

Array elements share the output, and a requeued job appends to it: what counts is the last such line
about this very job behind the byte where the output ended when its runner began. The time in the
line is ignored: it is in the time zone of the job's environment.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

_BLOCK = 1 << 16
_LONGEST = 1 << 10  # bytes of one line; longer than any, with the host's name in it

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

    None when there is no such line, or none that is understood.
    """
    try:
        text = _last_about(job, output, since)
    except OSError:
        return None
    return cause_in(text) if text else None


def cause_in(text: str) -> str | None:
    """The cause in slurmstepd's text behind the job's name and node; None for any other text."""
    match = _LINE.match(text)
    if not match:
        return None
    due = match[1] or ""
    return "cancelled" if due.startswith("SIGNAL ") else _CAUSES.get(due)


def _last_about(job: str, output: Path, since: int) -> str | None:
    """The text of the last line about the job, searched for from the end."""
    name = re.compile(rb"\*\*\* JOB %s ON \S+ ([^\n]*)" % re.escape(job.encode()))
    with output.open("rb") as file:
        end = file.seek(0, 2)
        since = since if since <= end else 0  # it was emptied meanwhile
        tail = b""
        while end > since:
            start = max(since, end - _BLOCK)
            file.seek(start)
            block = file.read(end - start) + tail
            found = list(name.finditer(block))
            if found:
                return found[-1][1].decode(errors="replace")
            end, tail = start, block[:_LONGEST]
    return None


def end_line(job: str, host: str, cause: str, now: float) -> str:
    """The line itself, as the local cluster writes it."""
    due = next(text for text, meaning in _CAUSES.items() if meaning == cause)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    return f"*** JOB {job} ON {host} CANCELLED AT {at}{' DUE TO ' if due else ''}{due} ***\n"
