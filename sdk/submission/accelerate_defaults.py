"""Name settings of accelerate in the user's home that contradict the resources of a trial."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm.slurm import JobRequest

_LAUNCH = re.compile(r"(?<![\w.-])accelerate(?:[ -]launch|\.commands\.launch)\b")
_CHOSEN = re.compile(r"--(config_file|num_processes)\b")


def accelerate_notes(entrypoint: str | Sequence[str] | None, job: JobRequest) -> list[str]:
    """The warning for an entrypoint whose `accelerate launch` would read such settings, if any."""
    text = entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
    path = _path(os.environ)
    if not _LAUNCH.search(text) or _CHOSEN.search(text) or not path.is_file():
        return []
    wrong = list(_contradictions(_read(path), job))
    if not wrong:
        return []
    slots = f"{job.slots} slot{'s' if job.slots > 1 else ''} ({job.slot_type})"
    return [
        f"entrypoint: {path} has {', '.join(wrong)}, but a trial has {slots}."
        " accelerate launch will use the file. Remove it, or pass --num_processes or --config_file"
    ]


def _path(env: Mapping[str, str]) -> Path:
    cache = Path(env.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(env.get("HF_HOME") or cache / "huggingface").expanduser()
    return home / "accelerate/default_config.yaml"


def _read(path: Path) -> Mapping[str, Any]:
    import yaml  # only here

    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # accelerate will report it
    return found if isinstance(found, dict) else {}


def _contradictions(settings: Mapping[str, Any], job: JobRequest) -> Iterator[str]:
    is_cpu = job.slot_type == "cpu"
    if settings.get("num_processes", job.slots) != job.slots:
        yield f"num_processes: {settings['num_processes']}"
    if settings.get("gpu_ids") not in (None, "all"):
        yield f"gpu_ids: {settings['gpu_ids']}"
    if settings.get("use_cpu") is True and not is_cpu:
        yield "use_cpu: true"
    if settings.get("distributed_type") == "NO" and job.slots > 1:
        yield "distributed_type: 'NO'"
