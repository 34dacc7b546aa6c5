"""What commands need that take the whole terminal."""

from __future__ import annotations


def check_textual(command: str, otherwise: str) -> None:
    """Raise LifecycleError where textual or a terminal is missing.

    Args:
        command: The command.
        otherwise: What prints the same without a terminal, as the beginning of a sentence.
    """
    import os
    import sys
    from importlib.util import find_spec

    from detslurm.sdk.errors import LifecycleError

    if find_spec("textual") is None:
        raise LifecycleError(
            f"{command} needs textual, which is not installed for this Python: "
            "pip install 'detslurm[tui]'"
        )
    # textual draws on stderr.
    there = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    if not there or os.environ.get("TERM", "dumb") == "dumb":
        raise LifecycleError(f"{command} needs a terminal; {otherwise}")
