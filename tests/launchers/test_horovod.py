"""The command line of the Horovod launcher; `tests/pytorch/test_horovod.py` runs it."""

from __future__ import annotations

import importlib.util

import pytest

from detslurm.launch import horovod as launcher
from detslurm.launch.arguments import UsageError


def test_options_of_horovodrun_become_horovods_environment(horovod: None) -> None:
    """As Horovod's own parser understands them; what is for mpirun stays apart."""
    options = ["--fusion-threshold-mb", "1", "--cycle-time-ms", "2", "--timeline-filename", "t"]
    env, mpi_args = launcher.tuned([*options, "--mpi-args=--mca btl 'self,tcp'"])
    assert (
        env.items()
        >= {
            "HOROVOD_FUSION_THRESHOLD": str(1024 * 1024),
            "HOROVOD_CYCLE_TIME": "2.0",
            "HOROVOD_TIMELINE": "t",
        }.items()
    )
    assert mpi_args == ["--mca", "btl", "self,tcp"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-np", "4", "-H", "a:2,b:2"], r"-np, --hosts: Slurm decides"),
        (["--gloo"], r"--gloo.*leave it out"),
        (["--min-np", "1"], r"--min-np"),
        (["--cycle-time-ms", "2", "train.py"], r"no option of horovodrun: train\.py"),
        (["--cycle-time-ms", "-2.0"], r"cycle_time_ms"),
        (["--cycle-time-ms", "soon"], r"refuses"),
    ],
)
def test_options_that_are_slurms_business(horovod: None, options: list[str], words: str) -> None:
    """And those that make no sense: each is named."""
    with pytest.raises(UsageError, match=words):
        launcher.tuned(options)


def test_without_horovod(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that says where to look."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert launcher.main(["train.py"]) == 1
    assert "Horovod is not installed for this Python" in capsys.readouterr().err
