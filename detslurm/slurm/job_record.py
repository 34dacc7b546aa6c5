"""Reading `scontrol show job`, where names and comments are free text that may resemble fields."""

from __future__ import annotations

import re

from detslurm.slurm.limits import parse_record

# Free text stands last in its line: all that follows belongs to it.
_FREE = re.compile(
    r"(?:^|\s)(JobName|(?:Admin|System)?Comment|Extra|Command|SubmitLine|WorkDir|Std(?:Err|In|Out))=(.*)"
)


def parse_job_records(text: str) -> list[dict[str, str]]:
    """The jobs in the lines of `scontrol show job`.

    A key that stands in a job's record twice is left out: a line break in a name has made it up.
    """
    records: list[dict[str, str]] = []
    twice: set[str] = set()
    for line in text.splitlines():
        if line.startswith("JobId="):
            records.append({})
            twice = set()
        if records:
            fields = _fields(line)
            twice |= fields.keys() & records[-1].keys()
            records[-1] |= fields
            for key in twice:
                records[-1].pop(key, None)
    return records


def memory_option(printed: str) -> str:
    """A size of memory as options of sbatch take it, which refuse the halves that Slurm prints:
    1536M of 1.50G."""
    match = re.fullmatch(r"(\d+\.\d+)([MGTP])", printed)
    return f"{float(match[1]) * 1024:.0f}{_SMALLER[match[2]]}" if match else printed


_SMALLER = {"M": "K", "G": "M", "T": "G", "P": "T"}


def _fields(line: str) -> dict[str, str]:
    free = _FREE.search(line)
    if free is None:
        return parse_record(line)
    return {**parse_record(line[: free.start()]), free[1]: free[2].rstrip()}
