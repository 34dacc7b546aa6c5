"""The `detslurm` command."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from gc import freeze, set_threshold  # the name of the module is that of a command's here


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, this process's own without `argv`; returns the exit status."""
    if argv is not None:
        return _run(argv)
    # What a command imports and reads has no cycles: looking for them each time that 700 objects
    # are new would take an eighth of its time.
    set_threshold(50_000)
    try:
        return _run_interruptible()
    except KeyboardInterrupt:  # on the way in or out
        return 130
    finally:
        freeze()  # else Python's end looks for cycles in all of it, which takes as long again
        # What is left is Python's own end: a Ctrl-C in there would only hide the exit status.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(argv: Sequence[str] | None = None) -> int:
    from detslurm.cli.app import run

    return run(argv)


def _run_interruptible() -> int:
    """With Ctrl-C as an exception, as commands expect it, once what all of them need is imported:
    one that Python raises within its import system may be printed, and lost."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from detslurm.cli.app import run

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()
