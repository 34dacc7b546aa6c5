"""Whether a search can work on code whose metrics are recorded from outside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(?:detslurm|determined)\b", re.MULTILINE)


def recording_problems(config: Mapping[str, Any], files: Mapping[str, Path]) -> list[str]:
    """Why a search's trials would not do what it asks for, in code that is not edited for it."""
    is_recorded = config["record"] is not None or config["metrics_from_log"]
    if not is_recorded or not _pauses(config["searcher"]) or any(map(_is_edited, files.items())):
        return []
    name = config["searcher"]["name"]
    return [
        f"searcher.name: {name} pauses trials and goes on with some of them later. Code does that"
        " only if it asks for its lengths and saves checkpoints through detslurm"
        " (docs/core-api.md); with `record` or `metrics_from_log` alone it does not. Use single,"
        " random, grid, optuna, or async_halving or adaptive_asha with `stop_once: true`"
    ]


def _pauses(searcher: Mapping[str, Any]) -> bool:
    halves = searcher["name"] in ("async_halving", "adaptive_asha")
    promotes = searcher.get("max_length") is not None and not searcher.get("stop_once")
    return searcher["name"] == "pbt" or (halves and promotes)


def _is_edited(file: tuple[str, Path]) -> bool:
    name, path = file
    try:
        return name.endswith(".py") and _IMPORT.search(path.read_bytes()) is not None
    except OSError:
        return False
