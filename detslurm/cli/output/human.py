"""Numbers, sizes and times for people: the one place that knows how they are written."""

from __future__ import annotations

import math
import os
import sys
import time
from datetime import timedelta

from detslurm._base.quantities import human_size
from detslurm._base.quantities import number as number

size = human_size


def on_terminal() -> bool:
    """Whether results go to a terminal: only there are they coloured, cut and paged."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def has_blocks() -> bool:
    """Whether the encoding of results has braille, blocks and boxes."""
    try:
        "⣿█┤◆".encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def human_time(seconds: float) -> str:
    """A span of time: its two largest units."""
    import humanize  # no list needs it

    if seconds < 1:
        return f"{seconds:.2g} seconds" if seconds else "0 seconds"
    span = timedelta(seconds=round(seconds))
    smallest = "hours" if span.days else "minutes" if span.seconds >= 3600 else "seconds"
    return humanize.precisedelta(span, minimum_unit=smallest, format="%.0f")


def ago(moment: float) -> str:
    """How long ago a moment was: 3 hours ago."""
    import humanize

    passed = timedelta(seconds=time.time() - moment)
    return humanize.naturaltime(passed, minimum_unit="seconds")


def rfc3339(seconds: float) -> str:
    """A moment in UTC, as logs and JSON show it."""
    whole = math.floor(seconds)
    micros = int((seconds - whole) * 1e6)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{micros:06d}Z"


def local_time(seconds: float | None) -> str:
    """A moment in the user's own time zone, as tables show it."""
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S%z", time.localtime(seconds))
