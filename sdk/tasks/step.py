"""Steps of a task's job, for sites that refuse ssh to nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detslurm.store.address import Address


def step_beside(address: Address) -> list[str]:
    """Return the `srun` that starts a program beside a server in a job, on its node."""
    step = ["srun", "--quiet", f"--jobid={address.job}", f"--nodelist={address.host}"]
    return [*step, "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none"]
