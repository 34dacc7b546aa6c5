"""Measure and print: python -m benchmarks [ROW...]; without names, every row."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pkgutil import iter_modules

from benchmarks import rows
from benchmarks.bench import Bench
from benchmarks.report import Row, Skip, table


def main() -> int:
    """Run the rows; 1 when a budget is broken."""
    names = [module.name for module in iter_modules(rows.__path__)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=rows.__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"any of {', '.join(names)}")
    chosen = parser.parse_args().rows or names
    unknown = set(chosen) - set(names)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))} (there are: {', '.join(names)})")
    found: list[Row] = []
    skipped: dict[str, str] = {}
    with Bench() as bench:
        for name in chosen:
            print(f"{name} ... (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
            try:
                found += import_module(f"benchmarks.rows.{name}").measure(bench)
            except Skip as reason:
                skipped[name] = str(reason)
    print(table(found))
    print(
        f"\n{os.cpu_count()} cores, load average {', '.join(f'{x:.1f}' for x in os.getloadavg())}"
    )
    for name, why in skipped.items():
        print(f"skipped {name}: {why}")
    return 1 if any(row.kept is False for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
