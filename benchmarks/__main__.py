"""Measure and print: python -m benchmarks [ROW...]; without names, every row."""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib import import_module
from pkgutil import iter_modules

from benchmarks import rows
from benchmarks.bench import Bench
from benchmarks.history import history_path, keep, last_figures
from benchmarks.quiet import QUIET, wait_until_quiet
from benchmarks.report import Row, Skip, table

MINUTES = 10
"""What all rows may take together, on two cores that do nothing else."""

ALONE = frozenset({"quality"})
"""Rows that take longer, and run only where they are named."""


def processor_seconds() -> float:
    """Of this process and those that it has waited for; a cluster's daemons are not among them."""
    return sum(os.times()[:4])


def main() -> int:
    """Run the rows; 1 when a budget is broken."""
    names = [module.name for module in iter_modules(rows.__path__)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=rows.__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"any of {', '.join(names)}")
    chosen = parser.parse_args().rows or [name for name in names if name not in ALONE]
    unknown = set(chosen) - set(names)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))} (there are: {', '.join(names)})")
    found: list[Row] = []
    notes: list[str] = []
    started = time.monotonic()
    with Bench() as bench:
        for name in chosen:
            began = time.monotonic()
            busy = wait_until_quiet()
            waited, spent = time.monotonic() - began, processor_seconds()
            if busy > QUIET:
                notes.append(f"{name}: {busy:.1f} cores were busy with something else")
            print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
            try:
                found += import_module(f"benchmarks.rows.{name}").measure(bench)
            except Skip as reason:
                notes.append(f"{name}: skipped, {reason}")
            took = time.monotonic() - began - waited
            cpu = processor_seconds() - spent
            said = f"{took:.0f} s, {cpu:.0f} s of a core, after {waited:.0f} s of rest"
            print(said, file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    if seconds > MINUTES * 60 and not ALONE.intersection(chosen):
        notes.append(f"these rows took more than the {MINUTES} minutes of all of them")
    print(table(found, last_figures(history_path())))
    print(
        "\nThe median, [between what half of the rounds were]. "
        f"{seconds / 60:.1f} minutes on {os.cpu_count()} cores; kept in {history_path()}"
    )
    print(*notes, sep="\n")
    keep(history_path(), found, seconds)
    return 1 if any(row.kept is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
