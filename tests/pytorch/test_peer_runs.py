"""The same trials, trained in many ways, with Determined 0.38.1 and here: the same happens.

What happened with Determined is in peer/determined-0.38.1.json; peer/record.py records it again.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PEER = Path(__file__).with_name("peer")


def alike(one: Any, other: Any) -> bool:
    """Whether two things of JSON are the same; other machines compute a little differently."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-4)
    return bool(one == other)


def first_difference(theirs: list[Any], ours: list[Any]) -> str | None:
    # How an early exit is recorded is no business of the trial's.
    theirs, ours = ([e for e in one if e[0] != "report_early_exit"] for one in (theirs, ours))
    for number, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        if not alike(one, other):
            return f"event {number}: Determined {one}, detslurm {other}"
    if len(theirs) != len(ours):
        return f"{len(theirs)} events, not {len(ours)}"
    return None


def test_the_same_happens_as_with_determined(tmp_path: Path) -> None:
    """Calls of hooks, losses, learning rates, metrics, reports, counters, errors."""
    found = tmp_path / "found.json"
    env = os.environ | {"DETSLURM_ROOT": str(tmp_path / "store")}
    argv = [sys.executable, "-m", "detslurm.compat", str(PEER / "runs.py"), str(found)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours = json.loads(found.read_text())
    theirs = json.loads((PEER / "determined-0.38.1.json").read_text())
    assert ours.keys() == theirs.keys()
    different = {name: first_difference(theirs[name], ours[name]) for name in theirs}
    assert not {name: how for name, how in different.items() if how is not None}
