"""One sbatch, one job: where a call seems to fail, its job is found by the script's unique name."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError, SubmitLimitReached

SUBMIT_PATIENCE = 120.0
_LAST_PATIENCE = 10.0


def script_path(folder: Path, mark: str | None = None) -> Path:
    """A name that no other job's script has: with the mark of its request, or drawn."""
    return folder / f"batch-{mark or uuid.uuid4().hex[:12]}.sh"


def submit(
    script: Path,
    env: Mapping[str, str],
    *,
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> str:
    """Queue a script with a `script_path` and return the job id; remove a refused script."""
    try:
        output = command.run(
            ["sbatch", "--parsable", *options, str(script), *arguments],
            env=dict(env),
            patience=SUBMIT_PATIENCE,
            # As patient: a job that can't be seen may be there all the same.
            before_retry=lambda: queued_from(script, SUBMIT_PATIENCE),
        )
        job = _job_in(output) or queued_from(script, SUBMIT_PATIENCE)
        if job is None:
            said = output.strip() or "it said nothing"
            message = f"sbatch named no job, and squeue shows none of its script: {said}"
            raise SlurmError(message, "Does `type sbatch` show a wrapper of your site?")
        return job
    except SlurmError as refusal:
        job = _queued_after(refusal, script)
        if job is None:
            with contextlib.suppress(OSError):  # the refusal is the error to see
                script.unlink()
            if command.is_submit_limit(refusal.message):
                raise SubmitLimitReached(refusal.message, refusal.advice) from refusal
            raise
        return job
    except KeyboardInterrupt:
        _give_up(script)
        raise


def _job_in(output: str) -> str | None:
    """The job id that `--parsable` prints; sites' wrappers add words and numbers of their own."""
    answers = re.findall(r"^(\d+)(?:;.*)?$", output, re.MULTILINE)
    return answers[0] if len(answers) == 1 else None


def _queued_after(refusal: SlurmError, script: Path) -> str | None:
    """The job that the last try may have queued, if Slurm can be asked now."""
    if not command.is_transient(refusal.message):
        return None
    try:
        return queued_from(script, _LAST_PATIENCE)
    except SlurmError:
        return None


def _give_up(script: Path) -> None:
    """Cancel the job that an interrupted call may have queued: no record has its id."""
    with contextlib.suppress(SlurmError):
        job = queued_from(script, _LAST_PATIENCE)
        if job is not None:
            command.run(["scancel", job], patience=_LAST_PATIENCE)


def queued_from(script: Path, patience: float) -> str | None:
    """The job of this script, if a call that seemed to fail has queued it nevertheless."""
    argv = ["squeue", "--noheader", "--me", "--states=all", "--format=%F|%o"]
    rows = command.run(argv, patience=patience, within=patience).splitlines()
    # Up to 22.05 the script's arguments stand behind its name.
    found = (row.partition("|") for row in rows)
    return next((job for job, _, line in found if line.startswith(str(script))), None)
