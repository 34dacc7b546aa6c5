"""Whether Slurm wants a running job's nodes for another job, which its controller alone knows."""

from __future__ import annotations

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.job_record import parse_job_records

_PATIENCE = 20.0


def is_preempted(ref: str) -> bool:
    """Whether this start of the job is being preempted; False where Slurm does not answer."""
    try:
        return parse_preempted(command.run(["scontrol", "show", "job", ref], patience=_PATIENCE))
    except SlurmError:
        return False


def parse_preempted(text: str) -> bool:
    """Whether `scontrol show job` shows a preemption of the job since its last start."""
    # The time may be that of an earlier start. Both are by the controller's clock.
    for record in parse_job_records(text):
        asked, started = record.get("PreemptTime", ""), record.get("StartTime", "")
        if asked.isdigit() and started.isdigit() and int(asked) >= int(started):
            return True
    return False
