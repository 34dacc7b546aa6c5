"""Slurm's own answers that only a selftest needs: what users see of it on this machine."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.job_record import parse_job_records

_SECONDS = 15.0


def slurm_version() -> str | None:
    """The version of sbatch, such as "24.11.5"; None if it does not answer."""
    text = _answer(["sbatch", "--version"])
    return text.split()[-1] if text and text.strip() else None


def is_script(program: str) -> bool | None:
    """Whether the program in PATH is a script; None if it can't be read."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            return file.read(4) != b"\x7fELF"
    except OSError:
        return None


def lists_partitions(names: Collection[str]) -> bool | None:
    """Whether Slurm lists these to users who don't ask for hidden partitions; None if unknown."""
    text = _answer(["sinfo", "--noheader", "--format=%R"])
    return None if text is None else {*names} <= {*text.split()}


def job_record(job_id: str) -> dict[str, str]:
    """The fields of a job as `scontrol show job` prints them here; empty if it doesn't."""
    text = _answer(["scontrol", "show", "job", job_id])
    return next(iter(parse_job_records(text or "")), {})


def local_time(text: str) -> float | None:
    """The seconds since 1970 of a time as Slurm prints it, taken as this machine's local time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _answer(argv: list[str]) -> str | None:
    env = command.environment()
    del env["SLURM_TIME_FORMAT"]  # as people see it
    try:
        return command.run(argv, patience=_SECONDS, within=_SECONDS, env=env)
    except SlurmError:
        return None
