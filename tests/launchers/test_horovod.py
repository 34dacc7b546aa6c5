"""The command line of the Horovod launcher; `tests/pytorch/test_horovod.py` runs it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.parametrize("first", [["autohorovod"], ["horovod", "--autohorovod"]])
def test_a_single_slot_needs_no_horovod(
    first: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--autohorovod` the script runs as it is; its own options stay."""
    script = tmp_path / "train.py"
    script.write_text("import os, sys; print(sys.argv[1:], 'USE_HOROVOD' in os.environ)")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    launcher_module, *options = first
    done = subprocess.run(
        [
            *(sys.executable, "-m", f"detslurm.launch.{launcher_module}", *options),
            *(sys.executable, str(script), "--autohorovod", "--", "x"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[rank=0] ['--autohorovod', '--', 'x'] False\n"


def test_without_horovod(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that says where to look."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert launcher.main(["train.py"]) == 1
    assert "Horovod is not installed for this Python" in capsys.readouterr().err
