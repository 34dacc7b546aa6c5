"""The end of a rank whose collectives are those of torch's gloo."""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

_THREADS: Final = "gloo_run"  # in the names of those that compute
_PATIENCE: Final = 5.0
_TURN: Final = 0.01


@cache
def await_gloo_at_exit() -> None:
    """Let Python end only when gloo's threads rest.

    A collective is over for those who wait for it a moment before its thread lets go of the
    tensors. Where Python no longer is by then the thread aborts the process, and a run that has
    done all of its work would fail (https://github.com/pytorch/pytorch/issues/190489).
    """
    atexit.register(_await_gloo)


def _await_gloo() -> None:
    end = time.monotonic() + _PATIENCE
    rests = 0
    while time.monotonic() < end and (states := list(_states())) and rests < 2:
        # A thread that is asleep may wait for Python, which it gets while this thread sleeps.
        rests = rests + 1 if set(states) == {"S"} else 0
        time.sleep(_TURN)


def _states() -> Iterator[str]:
    """R for each of the threads that runs or waits for a processor, S for one asleep."""
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                name, _, fields = (thread / "stat").read_text(errors="replace").rpartition(")")
                if _THREADS in name:
                    yield fields.split()[0]
