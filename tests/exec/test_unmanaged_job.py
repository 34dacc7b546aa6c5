"""Why a job that its user submitted is asked to stop."""

from __future__ import annotations

import pytest

from detslurm.exec.outcome import Cause
from detslurm.exec.unmanaged_job import _cause
from detslurm.slurm import JobInfo


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (None, Cause.ENDING),
        (JobInfo("7", "CANCELLED"), Cause.CANCEL),
        (JobInfo("7", "TIMEOUT"), Cause.TIME_LIMIT),
        (JobInfo("7", "RUNNING", time_left=60), Cause.TIME_LIMIT),
        (JobInfo("7", "RUNNING", time_left=6000), Cause.PREEMPTION),
        (JobInfo("7", "RUNNING"), Cause.PREEMPTION),
    ],
)
def test_the_cause_is_what_slurm_says_and_unknown_where_it_says_nothing(
    job: JobInfo | None, cause: Cause
) -> None:
    """A silent controller's job may as well be cancelled."""
    assert _cause(job) is cause
