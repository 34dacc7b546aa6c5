"""The environment of sbatch: no other job's identity, and the variables that the request has."""

from __future__ import annotations

import os

from detslurm._base import contract
from detslurm.slurm.request import JobRequest
from detslurm.slurm.shell_variables import PREFIX, exported_values


def variables_of(request: JobRequest) -> dict[str, str]:
    """The recorded variables that no field of the request overrules."""
    found = dict(entry.partition("=")[::2] for entry in request.variables)
    for name, value in (
        ("SBATCH_ACCOUNT", request.account),
        ("SBATCH_QOS", request.qos),
        ("SBATCH_TIMELIMIT", request.time_minutes),
        ("SBATCH_CONSTRAINT", request.constraint),
    ):
        if value is not None:
            found.pop(name, None)
    # The configuration has it by now, unless it names another partition. Submissions by code in
    # the job go by it, too.
    if found.get("SBATCH_PARTITION") != request.partition:
        found.pop("SBATCH_PARTITION", None)
    return found


def submit_environment(request: JobRequest) -> dict[str, str]:
    """Return the environment of sbatch, and so of the job: no other job's identity."""
    # Of a job's own environment (a runner submits successors), sbatch must see none: it would pass
    # the old job's index and restart count on to the new job.
    inherited = {**contract.inheritable(os.environ, PREFIX), **exported_values()}
    return {**inherited, **variables_of(request)}
