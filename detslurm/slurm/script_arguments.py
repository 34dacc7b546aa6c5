"""The arguments that a batch script was submitted with, as far as they are known.

Up to 22.05 the job's record has the arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError

_PATIENCE = 20.0


def arguments(job_id: str, record: Mapping[str, str]) -> list[str]:
    """The arguments behind the script's name; exact where the batch shell can be seen from here.

    Otherwise those of the record, or of sbatch's command line: there blanks divide arguments, also
    those that were quoted.
    """
    exact = _of_the_shell(job_id)
    if exact is not None:
        return exact
    path, *words = record.get("Command", "").split(" ")
    return words or behind(path, record.get("SubmitLine") or submit_line(job_id))


def _of_the_shell(job_id: str) -> list[str] | None:
    """The arguments of the batch script's own process, if it runs on this node."""
    copy = re.compile(rf"/job0*{job_id}/slurm_script$")
    for words in _command_lines():
        for number, word in enumerate(words[:8]):
            if copy.search(word):
                return words[number + 1 :]
    return None


def _command_lines() -> Iterator[list[str]]:
    """Those of this user's processes, oldest first; what others call theirs proves nothing."""
    for pid in sorted(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()):
        process = Path("/proc", str(pid))
        try:
            if process.stat().st_uid == os.getuid():
                yield os.fsdecode((process / "cmdline").read_bytes()).split("\0")[:-1]
        except OSError:
            pass  # it has just ended


def behind(path: str, line: str) -> list[str]:
    """The arguments behind the script in sbatch's command line; none where it is not found."""
    words = line.split()
    for number, word in enumerate(words):
        if number and Path(word).name == Path(path).name:
            return words[number + 1 :]
    return []


def submit_line(job_id: str) -> str:
    """sbatch's command line as accounting has it; empty if that does not answer."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}"]
    try:
        output = command.run([*argv, "--format=SubmitLine"], patience=_PATIENCE, within=_PATIENCE)
    except SlurmError:
        return ""
    return next(iter(output.splitlines()), "")
