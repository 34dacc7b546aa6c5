"""Checkpoints of Hugging Face's Trainer that a killed run has left half-written in its folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)")
_LAST = "trainer_state.json"  # the Trainer writes it after all else


def half_written_warning(output_dir: Path, resumed: str | None) -> str | None:
    """Return a warning if the newest checkpoint of a folder is half-written; None if it is whole.

    Scripts that look for the newest one themselves would fail with it, in each run again.

    Args:
        output_dir: Where the Trainer saves.
        resumed: The checkpoint that the trial goes on from; None if there is none.
    """
    try:
        found = {int(m[1]): path for path in output_dir.iterdir() if (m := _match(path))}
    except OSError:
        return None  # the Trainer will make it
    ordered = [found[steps] for steps in sorted(found, reverse=True)]
    if not ordered or _is_whole(ordered[0]):
        return None
    newest, *older = ordered
    sound = resumed or next((str(path) for path in older if _is_whole(path)), None)
    advice = "remove it, and begin without a checkpoint"
    if sound is not None:
        advice = (
            f"the newest sound one is {sound}: pass resume_from_checkpoint={sound!r} to train()"
        )
    return (
        f"{newest} is half-written: {_LAST} is missing or damaged. A run was killed while it saved."
        f" train(resume_from_checkpoint=True) and get_last_checkpoint() choose it, and fail;"
        f" {advice}"
    )


def _match(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name) if path.is_dir() else None


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / _LAST).read_bytes())
    except (OSError, ValueError):
        return False
    return True
