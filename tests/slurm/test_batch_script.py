"""The batch script, held beside what submitit's Slurm executor writes for the same options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import SlurmExecutor

from detslurm.slurm.batch_script import batch_script, extra_options, options
from detslurm.slurm.request import JobRequest
from detslurm.slurm.shell_lines import command_line, prologue

NASTY = "$(touch pwned) `touch pwned` ' \" # %j\n#SBATCH --no-such\ttouch pwned"
REQUESTS: dict[str, dict[str, Any]] = {
    "one job": {},
    "an array": {"count": 1000, "throttle": 16, "hold": True},
    "words of a shell": {"name": NASTY, "comment": NASTY, "folder": Path("/a b/%x'q")},
    "extra options": {"sbatch_args": ("--foo='a b'", "-C x"), "modules": ("m",), "setup": ("y",)},
    "everything": {
        "nodes": 2, "max_nodes": 4, "ntasks": 3, "ntasks_per_node": 2, "cpus_per_task": 3,
        "gpus": "a:2", "gpus_per_task": "1", "gres": "gpu:1", "nice": 5, "partition": "p",
        "account": "a", "qos": "q", "constraint": "a&b", "time_minutes": 5, "requeue": False,
        "exclude": ("n1", "n2"), "dependency": "afterany:5",
    },
}  # fmt: skip


@pytest.mark.parametrize("given", REQUESTS.values(), ids=REQUESTS)
def test_it_is_the_script_that_submitit_writes(given: dict[str, Any]) -> None:
    """Line by line, but for what tells submitit's own jobs that they are such."""
    base = {"name": "n", "command": ("echo", "a b"), "folder": Path("/f")}
    request = JobRequest(**{**base, **given})
    theirs = SlurmExecutor(folder="/f")
    theirs.update_parameters(
        job_name=None, time=None, wckey=None, use_srun=False, stderr_to_stdout=True,
        setup=prologue(request), additional_parameters=options(request),
    )  # fmt: skip
    text = theirs._make_submission_file_text(command_line(request), uid="")
    wanted = text.replace("export SUBMITIT_EXECUTOR=slurm\n", "").splitlines()
    extra = [f"#SBATCH {line}" for line in extra_options(request)]
    assert sorted(batch_script(request).splitlines()) == sorted([*wanted, *extra])


def test_no_signal_is_sent_where_none_is_asked_for() -> None:
    """A lead of 0 leaves the time limit to Slurm alone."""
    request = JobRequest(name="n", command=("true",), folder=Path("/f"), signal_lead=0)
    assert "--signal" not in batch_script(request)
