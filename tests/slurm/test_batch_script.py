"""The batch script asks Slurm for what the request says, and for nothing of submitit's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.slurm.batch_script import BatchExecutor
from detslurm.slurm.request import JobRequest


@pytest.mark.parametrize(("lead", "lines"), [(0, []), (90, ["#SBATCH --signal=B:USR1@90"])])
def test_no_signal_is_sent_where_none_is_asked_for(lead: int, lines: list[str]) -> None:
    """A lead of 0 leaves the time limit to Slurm alone."""
    request = JobRequest(name="n", command=("true",), folder=Path("/f"), signal_lead=lead)
    script = BatchExecutor(request).script().splitlines()
    assert [line for line in script if "--signal" in line] == lines
