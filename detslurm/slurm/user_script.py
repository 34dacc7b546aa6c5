"""A batch script that the user submitted by hand: kept while its job runs, submitted again later.

Its options are those in the job's record. Options that leave no trace there (--signal) must be in
the script.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from detslurm._base import contract
from detslurm.slurm import command, sbatch
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.job_record import options_of, parse_job_records
from detslurm.slurm.queue import parse_number
from detslurm.slurm.script_arguments import arguments
from detslurm.slurm.shell_variables import shell_variables

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
    return {
        "command": record.get("Command", "").partition(" ")[0],
        "variables": list(shell_variables()),
        "options": options_of(record),
        "arguments": arguments(job_id, record),
        "throttle": parse_number(record.get("ArrayTaskThrottle")) or None,
        "folder": record.get("WorkDir", ""),
    }


def submit_again(
    path: Path, recipe: Mapping[str, Any], elements: Sequence[int] = (), mark: str | None = None
) -> str:
    """Queue the script once more, held, for these elements of its array; returns the job id.

    `Cluster.submitted` finds the job by the mark.
    """
    if not path.exists():
        raise SlurmError(f"{path} is gone", "Submit your script yourself.")
    array = []
    if elements:
        throttle = f"%{recipe['throttle']}" if recipe.get("throttle") else ""
        array = [f"--array={','.join(map(str, elements))}{throttle}"]
    variables = dict(entry.partition("=")[::2] for entry in recipe["variables"])
    with _copied(path, mark) as copy:
        return sbatch.submit(
            copy,
            contract.inheritable(os.environ, "SBATCH_", *contract.OF_A_RUN) | variables,
            options=[*recipe["options"], *array, "--hold"],
            arguments=recipe["arguments"],
        )


@contextmanager
def _copied(script: Path, mark: str | None) -> Iterator[Path]:
    """The script under another name, for one submission: by its own all jobs of it look the same.

    Slurm keeps what it was given: afterwards the copy is not needed.
    """
    path = sbatch.script_path(script.parent, mark)
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
