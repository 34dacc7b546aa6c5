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


def test_the_users_lists_go_on_with_ours() -> None:
    """Of an option that is given twice sbatch takes the last one."""
    request = JobRequest(
        name="n",
        command=("true",),
        folder=Path("/f"),
        gres="gpu:2",
        exclude=("n1", "n2"),
        dependency="afterany:7",
        cpus_per_task=1,
        sbatch_args=(
            *("--gres=lscratch:100", "-x n9", "--dependency=afterok:5", "--mem=1G"),
            "--cpus-per-task=8",
        ),
    )
    last = {}
    for line in BatchExecutor(request).script().splitlines():
        name, equals, value = line.removeprefix("#SBATCH --").partition("=")
        if line.startswith("#SBATCH --") and equals:
            last[name] = value
    assert last["gres"] == "gpu:2,lscratch:100"
    assert last["exclude"] == "n1,n2,n9"
    assert last["dependency"] == "afterany:7,afterok:5"
    assert last["mem"] == "1G"
    assert last["cpus-per-task"] == "8"  # a slot is a CPU; one process may have more of them
