"""Search lines on standard input for one pattern; report the first match, and exit.

Python's search may take years and can't be interrupted. So it gets a process of its own,
which the kernel ends when its allowance of processor time is used up. It runs alone, by its path:
nothing but the standard library is loaded.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys

# Seconds of processor time: at once, and for each byte read (so that slow patterns delay no log).
_ALLOWANCE = 1.0
_PER_BYTE = 20e-6


def main() -> None:
    """The first line is the pattern in JSON; the others are searched."""
    signal.setitimer(signal.ITIMER_PROF, _ALLOWANCE)  # the default action ends the process
    pattern = re.compile(json.loads(sys.stdin.buffer.readline()))
    for line in sys.stdin.buffer:
        left, _ = signal.getitimer(signal.ITIMER_PROF)
        signal.setitimer(signal.ITIMER_PROF, min(left + len(line) * _PER_BYTE, _ALLOWANCE))
        if pattern.search(line.removesuffix(b"\n").decode("utf-8", "replace")):
            os.write(1, b"+")
            return


if __name__ == "__main__":
    main()
