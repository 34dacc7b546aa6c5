"""Submissions as facts, and how a trial whose job is gone gets a new one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm.slurm.request import JobRequest


def runner_command(experiment_dir: Path, first_index: int) -> tuple[str, ...]:
    """What a batch script execs: element i of its array works for trial `first_index` + i."""
    runner = (sys.executable, "-m", "detslurm.exec.runner")
    return (*runner, str(experiment_dir), str(first_index))


def submitted_fact(
    cluster: str, job_id: str, first_index: int, request: JobRequest
) -> dict[str, Any]:
    """The fact that says which job works for which trials, and how to ask for it again."""
    job = {
        "cluster": cluster,
        "job_id": job_id,
        "first_index": first_index,
        "count": len(request.elements) or 1,
        "array": request.is_array,
    }
    return {"type": "submitted", "jobs": [job], "request": request.to_dict()}


def successor_request(
    facts: Iterable[Mapping[str, Any]],
    experiment_dir: Path,
    index: int,
    *,
    after: str | None = None,
    hold: bool = False,
    exclude: Sequence[str] = (),
) -> JobRequest:
    """The request of a new job for one trial alone, after the first that covered its index.

    `after` is the ref of a job that must be gone before this one starts. Raises `LookupError` when
    no submission covered this trial.
    """
    original = _first_request(facts, index)
    return original.with_changes(
        command=runner_command(experiment_dir, index),
        count=None,
        indices=(),
        throttle=None,
        dependency=f"afterany:{after}" if after else None,
        hold=hold,
        exclude=tuple(dict.fromkeys((*original.exclude, *exclude))),
    )


def _first_request(facts: Iterable[Mapping[str, Any]], index: int) -> JobRequest:
    for fact in facts:
        if fact.get("type") != "submitted":
            continue
        for job in fact["jobs"]:
            if 0 <= index - job["first_index"] < job["count"]:
                return JobRequest.from_dict(fact["request"])
    raise LookupError(f"no job was ever submitted for the trial with index {index}")
