"""What earlier runs measured: one line of JSON a run, in the user's cache."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measure import Rounds
from benchmarks.peers import REPOSITORY, cache_directory
from benchmarks.report import Last, Row


def history_path() -> Path:
    """`$XDG_CACHE_HOME/detslurm/benchmarks.jsonl`: figures of one machine, not of the project."""
    return cache_directory() / "benchmarks.jsonl"


def last_figures(path: Path) -> dict[str, Last]:
    """Each row of the last run that had it; a line that a killed run left broken off is skipped."""
    found: dict[str, Last] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            with suppress(ValueError, LookupError, TypeError):
                rows: list[dict[str, Any]] = json.loads(line)["rows"]
                found |= {row["name"]: Last(row["ours"][0], row["ratio"]) for row in rows}
    return found


def keep(path: Path, rows: Iterable[Row], seconds: float) -> None:
    """Add this run: its time, commit and cores, and of each row the median and quartiles."""
    kept = [
        {
            "name": row.name,
            "ours": _numbers(row.ours),
            "anchor": row.anchor and _numbers(row.anchor),
            "ratio": row.ratio,
            "kept": row.kept,
        }
        for row in rows
    ]
    run = {
        "time": time.time(), "seconds": seconds, "commit": commit(), "cores": os.cpu_count(),
        "rows": kept,
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
