"""The `detslurm` command."""

from __future__ import annotations

import signal
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, this process's own without `argv`; returns the exit status."""
    if argv is not None:
        return _run(argv)
    try:
        return _run()
    except KeyboardInterrupt:  # on the way in or out
        return 130
    finally:
        # What is left is Python's own end: a Ctrl-C in there would only hide the exit status.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(argv: Sequence[str] | None = None) -> int:
    from detslurm.cli.app import run

    return run(argv)
