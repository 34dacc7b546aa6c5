"""The `detslurm` command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from gc import freeze, set_threshold  # the name of the module is that of a command's here
from types import FrameType

from detslurm._base import pythonpath

# Ctrl-C, and the signals of a lost connection and of `kill`: none may leave an unrecorded job.
_ENDING = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
# C code may call these without a look at their exceptions.
_SWALLOWING = frozenset({"__del__", "__eq__", "__getattr__", "__hash__", "__repr__"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, this process's own without `argv`; returns the exit status."""
    if argv is not None:
        return _run(argv)
    # Imports and reads of a command make no cycles: looking for cycles each time that 700 objects
    # are new would take an eighth of its time.
    set_threshold(50_000)
    pythonpath.own_packages_first()
    try:
        return _run_interruptible()
    except Exception as error:
        if (complaint := pythonpath.complaint(error)) is None:
            raise
        print(f"detslurm: error: {complaint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # on the way in or out
        return 130
    finally:
        freeze()  # else Python's end looks for cycles in all of it, which takes as long again
        # The rest is Python's own end: a Ctrl-C in there would only hide the exit status.
        for number in (*_ENDING, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)


def _run(argv: Sequence[str] | None = None) -> int:
    from detslurm.cli.app import run

    return run(argv)


def _run_interruptible() -> int:
    """With Ctrl-C as an exception, as commands expect it, once what all of them need is there;
    so with the other signals that end a command, unless the caller has them ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from detslurm.cli.app import run

    interrupt = _Interrupt()
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupt)
            signal.signal(signal.SIGALRM, interrupt)
    status = run()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return 128 + interrupt.came if status and interrupt.came else status


class _Interrupt:
    """Handles Ctrl-C: raises KeyboardInterrupt; within an import, or what C code calls, only right
    after it: there it may be dropped, or become another error."""

    came = 0  # the number of the first signal

    def __call__(self, number: int, frame: FrameType | None) -> None:
        ending = (signal.SIGHUP, signal.SIGTERM)
        if self.came in ending and number in ending:
            return  # a lost connection sends several: one must not end what the first has begun
        self.came = self.came or number
        while frame is not None:
            code = frame.f_code
            if code.co_name in _SWALLOWING or code.co_filename.startswith("<frozen importlib"):
                signal.setitimer(signal.ITIMER_REAL, 0.002)
                return
            frame = frame.f_back
        raise KeyboardInterrupt
