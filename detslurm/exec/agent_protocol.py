"""The messages between the runner and its node agents, over the pipes of the step.

Down, on the agents' standard input (srun broadcasts it to every node): one command a line.
Up, on their standard output among the log lines: a line that starts with a record separator is a
report in JSON. No port is opened. These pipes, which no other user can read, also bring the agents
the token of the run.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

PREEMPT = "preempt"
KILL = "kill"
PEERS = "peers "
RUN = "run "

_MARK = "\x1e"
_PART, _LAST = b"\x1f+", b"\x1f."
# slurmstepd passes a line on whole up to this many bytes; longer ones get mixed with other nodes'.
_WHOLE = 1000
# The last part of a line may get lost: the line must not grow without bound then.
_LONGEST = 1 << 20


def new_token() -> str:
    """The secret of one run's ranks. Peers' pickles are trusted for it: write it nowhere."""
    return os.urandom(16).hex()  # `secrets` itself costs each runner twenty path calls


def report_line(report: dict[str, Any]) -> bytes:
    """A report as one line."""
    return f"{_MARK}{to_json(report)}\n".encode()


def parse_report(line: str) -> dict[str, Any] | None:
    """The report in a line, or None for a line of the log."""
    if not line.startswith(_MARK):
        return None
    try:
        report = from_json(line[1:])
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def to_json(value: Any) -> str:
    """JSON on one line; text may be no text in any encoding, as paths may."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        import json  # only here: most runners and agents start without it

        return json.dumps(value, separators=(",", ":"))


def from_json(text: str) -> Any:
    """The object that `to_json` wrote. Raises `ValueError` if the text is no JSON."""
    try:
        return msgspec.json.decode(text)
    except ValueError:
        import json

        return json.loads(text)


def log_line(node: int, text: str) -> bytes:
    """A line of the log as bytes for the step's output, in parts when it is long."""
    data = text.encode("utf-8", "replace")
    if len(data) < _WHOLE:
        return data + b"\n"
    parts = [data[i : i + _WHOLE - 50] for i in range(0, len(data), _WHOLE - 50)]
    marks = [_PART] * (len(parts) - 1) + [_LAST]
    return b"".join(
        b"%b%d %b\n" % (mark, node, part) for mark, part in zip(marks, parts, strict=True)
    )


class Reassembler:
    """Puts the parts of long lines together again, node by node."""

    def __init__(self) -> None:
        self._parts: dict[bytes, bytes] = {}

    def line(self, data: bytes) -> str | None:
        """The whole line that this one completes, or None while parts are missing."""
        mark = data[:2]
        if mark in (_PART, _LAST):
            node, _, part = data[2:].partition(b" ")
            data = self._parts.pop(node, b"") + part
            if mark == _PART and len(data) < _LONGEST:
                self._parts[node] = data
                return None
        return data.decode("utf-8", "replace")


def sanitized(text: str) -> str:
    """A log line that can't be taken for a report, whatever the user's code prints."""
    return text.replace(_MARK, "").replace("\x1f", "")
