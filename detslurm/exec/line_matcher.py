"""Search lines on standard input for a log policy's pattern, or for metrics.

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
_STEP = "step"
_LONGEST = 4000  # bytes: lines of several writers don't mix up to PIPE_BUF


def main() -> None:
    """The first line has the pattern in JSON; the others are searched, up to the first match.

    With a group and a number beside the pattern each match is a line of the recorder's channel.
    """
    signal.setitimer(signal.ITIMER_PROF, _ALLOWANCE)  # the default action ends the process
    wanted = json.loads(sys.stdin.buffer.readline())
    group, pattern, number = wanted if isinstance(wanted, list) else (None, wanted, 0)
    search = re.compile(pattern).search
    for line in sys.stdin.buffer:
        left, _ = signal.getitimer(signal.ITIMER_PROF)
        signal.setitimer(signal.ITIMER_PROF, min(left + len(line) * _PER_BYTE, _ALLOWANCE))
        found = search(line.removesuffix(b"\n").decode("utf-8", "replace"))
        if found is None:
            continue
        if group is None:
            os.write(1, b"+")
            return
        write(group, f"log{number}", found.groupdict())


def write(group: str, source: str, texts: dict[str, str | None]) -> None:
    """Write the numbers among the named groups of a match."""
    numbers = {
        name: value for name, text in texts.items() if (value := number_of(text)) is not None
    }
    step = numbers.pop(_STEP, None)
    message = {"s": source, "k": step, "v": numbers, "g": group}
    line = f"{json.dumps(message)}\n".encode()
    if numbers and len(line) <= _LONGEST:
        os.write(1, line)


def number_of(text: str | None) -> float | None:
    r"""The number in a match of `\S+`, which takes punctuation with it."""
    try:
        return float((text or "").strip(" ,;:()[]"))
    except ValueError:
        return None


if __name__ == "__main__":
    main()
