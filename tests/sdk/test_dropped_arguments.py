"""A shell that drops a trial's arguments is refused: all trials would be alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.config import load_experiment
from detslurm.sdk.submission.dropped_arguments import dropped_arguments

IGNORES, PASSES = "#!/bin/bash\npython3 t.py --lr 1\n", '#!/bin/sh\nexec python3 t.py "$@"\n'


def refusals(
    folder: Path, entrypoint: Any, script: str = IGNORES, arguments: Any = "flags"
) -> list[str]:
    (folder / "run.sh").write_text(script)
    config = load_experiment(
        {
            "entrypoint": entrypoint,
            "arguments": arguments,
            "hyperparameters": {"lr": 1},
            "searcher": {"name": "single", "metric": "m"},
        }
    ).config
    return dropped_arguments(config, {"run.sh": folder / "run.sh"})


@pytest.mark.parametrize(
    "entrypoint",
    [
        ["bash", "-c", "cd a && python3 t.py"],
        ["bash", "-c", 'python3 t.py "$@"'],  # its first argument would be $0
        ["singularity", "exec", "x.sif", "/bin/sh", "-e", "-lc", "python3 t.py"],
        "bash -c 'python3 t.py'",
        "bash -c 'cd a && python3 t.py \"$@\"'",
    ],
)
def test_texts_of_an_inner_shell(tmp_path: Path, entrypoint: Any) -> None:
    (said,) = refusals(tmp_path, entrypoint)
    assert "make this text itself the entrypoint" in said


@pytest.mark.parametrize(
    "entrypoint",
    [["bash", "run.sh"], ["sh", "-e", "./run.sh", "--x"], ["./run.sh"], "srun ./run.sh"],
)
def test_scripts_without_arguments(tmp_path: Path, entrypoint: Any) -> None:
    (said,) = refusals(tmp_path, entrypoint)
    assert 'run.sh uses none of its arguments: write "$@"' in said
    for script in (PASSES, "lr=${1#--lr=}\n", "while getopts l: x; do :; done\n", ". ./all.sh\n"):
        assert (
            refusals(tmp_path, entrypoint, script if script is PASSES else f"#!/bin/sh\n{script}")
            == []
        )


@pytest.mark.parametrize(
    "entrypoint",
    [
        ["bash", "-c", 'python3 t.py "$@"', "train"],
        'bash -c \'python3 t.py "$@"\' train "$@"',
        "bash -c 'cd a' && python3 t.py \"$@\" | tee log",
        'bash run.sh && python3 t.py "$@"',
        ["python3", "t.py"],
        ["bash", "other.sh"],
        "python3 t.py --shell bash",
    ],
)
def test_arguments_that_arrive(tmp_path: Path, entrypoint: Any) -> None:
    assert refusals(tmp_path, entrypoint) == []


def test_a_file_may_be_read_by_its_name(tmp_path: Path) -> None:
    assert refusals(tmp_path, ["bash", "run.sh"], arguments={"file": "c.yaml"}) == []
