"""Code that requeues its own job is named at the submission."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.sdk.submission.requeue_owners import notes


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("scontrol requeue $SLURM_JOB_ID", "scontrol requeue"),
        ('subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])', "scontrol requeue"),
        ("trap 'sbatch --time=1:00 \"$0\"' USR1", "sbatch $0"),
        (
            "Trainer(plugins=[SLURMEnvironment(requeue_signal=sig)])",
            "SLURMEnvironment()",
        ),
        ("# scontrol requeue is done by detslurm", None),
        ("sbatch next.sh; echo $0", None),
        ("Trainer(plugins=[SLURMEnvironment(auto_requeue=False)])", None),
    ],
)
def test_a_second_owner_of_the_requeue_is_named(
    tmp_path: Path, line: str, call: str | None
) -> None:
    """With its file and line; what does not requeue is not."""
    (script := tmp_path / "train.sh").write_text(f"#!/bin/sh\n{line}\n")
    found = notes("bash train.sh", {"train.sh": script, "data.bin": tmp_path / "absent"})
    assert len(found) == (call is not None)
    assert all(note.startswith(f"train.sh:2: `{call}` requeues the job") for note in found)
