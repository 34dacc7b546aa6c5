"""What earlier runs measured: one line of JSON a run, in the user's cache.

`python -m benchmarks.history [RUNS]` prints as Markdown what the last RUNS runs (default 3) of this
commit on this machine found: of each row the median of their medians, and the least and the most.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import Rounds
from benchmarks.peers import REPOSITORY, cache_directory
from benchmarks.report import Last, Row, number


def history_path() -> Path:
    """`$XDG_CACHE_HOME/detslurm/benchmarks.jsonl`: figures of one machine, not of the project."""
    return cache_directory() / "benchmarks.jsonl"


def last_figures(path: Path) -> dict[str, Last]:
    """Each row of the last run that had it; a line that a killed run left broken off is skipped."""
    found: dict[str, Last] = {}
    for run in _runs(path):
        with suppress(LookupError, TypeError):
            found |= {row["name"]: Last(row["ours"][0], row["ratio"]) for row in run["rows"]}
    return found


def _runs(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            yield json.loads(line)


def markdown(path: Path, count: int = 3) -> str:
    """The last runs of this commit on this machine as a table, with their spread."""
    here = (commit(), platform.node())
    found = [run for run in _runs(path) if (run.get("commit"), run.get("machine")) == here][-count:]
    lines = ["| what | ours | ratio | budget | kept |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(row["name"] for run in found for row in run["rows"]):
        rows = [row for run in found for row in run["rows"] if row["name"] == name]
        ours = _spread([row["ours"][0] for row in rows])
        ratio = _spread([row["ratio"] for row in rows if row["ratio"] is not None])
        kept = [row["kept"] for row in rows if row["kept"] is not None]
        said = f"{sum(kept)} of {len(kept)}" if kept else ""
        lines.append(f"| {name} | {ours} | {ratio} | {rows[-1]['budget']} | {said} |")
    minutes = _spread([run["seconds"] / 60 for run in found])
    lines.append(
        f"\n{len(found)} runs of {here[0]}, {os.cpu_count()} cores, {minutes} minutes each"
    )
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    """The median, and the least and the most."""
    if not values:
        return ""
    middle, least, most = map(number, (statistics.median(values), min(values), max(values)))
    return middle if least == most else f"{middle} [{least}, {most}]"


def keep(path: Path, rows: Iterable[Row], seconds: float) -> None:
    """Add this run: its time, commit and machine, and of each row the median and quartiles."""
    kept = [
        {
            "name": row.name,
            "ours": _numbers(row.ours),
            "anchor": row.anchor and _numbers(row.anchor),
            "ratio": row.ratio,
            "kept": row.kept,
            "budget": row.budget,
        }
        for row in rows
    ]
    run = {
        "time": time.time(), "seconds": seconds, "commit": commit(), "cores": os.cpu_count(),
        "machine": platform.node(), "rows": kept,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lines:
        lines.write("\n" + json.dumps(run) + "\n")  # whatever the line before broke off with


def _numbers(figure: Rounds | float) -> list[float]:
    return [figure.median, *figure.quartiles] if isinstance(figure, Rounds) else [figure]


def commit() -> str:
    """The commit that is measured, and whether anything was changed since."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=REPOSITORY, capture_output=True, text=True
    )
    return done.stdout.strip()


if __name__ == "__main__":
    print(markdown(history_path(), *map(int, sys.argv[1:])))
