"""A batch script that the user submitted by hand: kept while its job runs, submitted again later.

The job's record has what Slurm has made of the job: a site's plugin may have rewritten the account
or the partition. So the script's own lines, sbatch's command line and its variables come first, and
the record has the rest. Options that leave no trace there (--signal) must be in the script.
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
from detslurm.slurm.script_arguments import (
    arguments,
    command_line_options,
    options_of_variables,
    script_options,
    submit_line,
)
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
    words = arguments(job_id, record)
    script = record.get("Command", "").partition(" ")[0]
    return {
        "command": script,
        # Not the whole line: it may have secrets, and others may read it.
        "given": command_line_options(script, record.get("SubmitLine", "")),
        "variables": list(shell_variables()),
        "options": options_of(record),
        "arguments": words,
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
            options=[*_options(path, recipe, variables), *array, "--hold"],
            arguments=recipe["arguments"],
        )


def _options(path: Path, recipe: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """The options of the first submission's command line, and those that only the record has."""
    given = recipe["given"] or command_line_options(recipe["command"], submit_line(recipe["job"]))
    named = {
        *given,
        *options_of_variables(variables),
        *script_options(path.read_text("utf-8", "replace")),
    }
    of_record = [
        option for option in recipe["options"] if option[2:].partition("=")[0] not in named
    ]
    return [*of_record, *(f"--{name}={value}" for name, value in given.items())]


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
