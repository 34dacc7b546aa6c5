"""What a job has of its nodes, by the variables of its batch script."""

from __future__ import annotations

import pytest

from detslurm.slurm.allocated import Allocated, allocated

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Allocated(None, None)),
        ({"SLURM_JOB_CPUS_PER_NODE": "8"}, Allocated(8, None)),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2),4", "SLURM_MEM_PER_NODE": "64000"},
         Allocated(20, 64000 * MEGABYTE)),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2),4", "SLURM_MEM_PER_CPU": "1000"},
         Allocated(20, 4000 * MEGABYTE)),
        ({"SLURM_JOB_CPUS_PER_NODE": "2", "SLURM_MEM_PER_NODE": "0"}, Allocated(2, None)),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x2),many,4"}, Allocated(None, None)),
        ({"SLURM_JOB_CPUS_PER_NODE": "many", "SLURM_MEM_PER_CPU": "1000"}, Allocated(None, None)),
    ],
)  # fmt: skip
def test_what_the_variables_say(env: dict[str, str], expected: Allocated) -> None:
    """What they don't say is unknown, not unlimited and not 0."""
    assert allocated(env) == expected
