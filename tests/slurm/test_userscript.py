"""What a job's record says of the options that its script was submitted with."""

from __future__ import annotations

from detslurm.slurm.limits import parse_record
from detslurm.slurm.userscript import options_of

RECORD = (
    "JobId=7 JobName=two words UserId=alice(1001) Account=(null) QOS=normal Requeue=1 BatchFlag=1"
    " TimeLimit=1-02:00:00 Partition=low NumNodes=2 NumCPUs=4 NumTasks=4 CPUs/Task=1"
    " NtasksPerN:B:S:C=2:0:*:* MinCPUsNode=2 MinMemoryCPU=100M Features=(null)"
    " WorkDir=/home/alice/my work TresPerNode=gres:gpu:2 Comment=--account=x"
)


def test_what_the_job_asked_for_is_asked_for_again() -> None:
    """Values with blanks stay whole, what was not said stays unsaid."""
    assert options_of(parse_record(RECORD)) == [
        "--job-name=two words",
        "--partition=low",
        "--qos=normal",
        "--time=1-02:00:00",
        "--nodes=2",
        "--ntasks=4",
        "--cpus-per-task=1",
        "--mem-per-cpu=100M",
        "--chdir=/home/alice/my work",
        "--ntasks-per-node=2",
        "--gres=gpu:2",
        "--requeue",
    ]
