"""A batch script that the user submitted by hand: kept while its job runs, submitted again later.

Slurm does not remember the options of sbatch's command line. What the job asked for is in its
record, and is repeated; options that leave no trace there (--signal) must be in the script.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from detslurm import _env
from detslurm.slurm import command, sbatch
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.job_record import options_of, parse_job_records
from detslurm.slurm.queue import parse_number
from detslurm.slurm.script_arguments import arguments

SCRIPT = "batch.sh"
"""The user's own batch script, beside what its jobs leave in the experiment's `jobs`."""

_PATIENCE = 20.0


def keep(job_id: str, path: Path) -> dict[str, Any] | None:
    """Keep this job's script in a file; how to submit it again, None if it has no script.

    Raises `SlurmError` when the controller does not answer.
    """
    records = parse_job_records(command.run(["scontrol", "show", "job", job_id]))
    record = records[0] if records else {}
    if record.get("BatchFlag") in (None, "0"):
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    # The job is this process's own, so that the controller knows it and has its script still.
    command.run(["scontrol", "write", "batch_script", job_id, str(path)], patience=_PATIENCE)
    words = arguments(job_id, record)
    return {
        "options": options_of(record),
        "arguments": words,
        "throttle": parse_number(record.get("ArrayTaskThrottle")) or None,
        "folder": record.get("WorkDir", ""),
    }


def submit_again(path: Path, recipe: Mapping[str, Any], elements: Sequence[int] = ()) -> str:
    """Queue the script once more, held, for these elements of its array; returns the job id."""
    if not path.exists():
        raise SlurmError(f"{path} is gone", "Submit your script yourself.")
    array = []
    if elements:
        throttle = f"%{recipe['throttle']}" if recipe.get("throttle") else ""
        array = [f"--array={','.join(map(str, elements))}{throttle}"]
    with _copied(path) as copy:
        return sbatch.submit(
            copy,
            _env.without_job(os.environ, "SBATCH_", *_env.OF_A_RUN),
            options=[*recipe["options"], *array, "--hold"],
            arguments=recipe["arguments"],
        )


@contextmanager
def _copied(script: Path) -> Iterator[Path]:
    """The script under another name, for one submission: by its own all jobs of it look the same.

    Slurm keeps what it was given: afterwards the copy is not needed.
    """
    path = sbatch.script_path(script.parent)
    try:
        shutil.copy(script, path)
        yield path
    finally:
        path.unlink(missing_ok=True)


def submitted_fact(
    refs: Sequence[str], indices: Sequence[int], script: Mapping[str, Any]
) -> dict[str, Any]:
    """The fact that records which jobs of a user's own script work for which trials."""
    jobs = [
        {"cluster": "slurm", "job_id": ref, "first_index": index, "count": 1, "array": False}
        for ref, index in zip(refs, indices, strict=True)
    ]
    return {"type": "submitted", "jobs": jobs, "script": dict(script)}
