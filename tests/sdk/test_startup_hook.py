"""A startup-hook.sh that would harm or fail is named before anything is queued."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.sdk.submission.startup_hook import NAME, notes, problems


def hook(folder: Path, text: str) -> dict[str, Path]:
    path = folder / NAME
    path.write_bytes(text.encode())
    return {NAME: path}


def test_line_ends_of_windows_are_a_problem(tmp_path: Path) -> None:
    (problem,) = problems(hook(tmp_path, "export A=1\r\n"))
    assert problem.endswith("fails. `sed -i 's/\\r$//' startup-hook.sh` mends it")
    assert problems(hook(tmp_path, "export A=1\n")) == problems({}) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pip install -e .", "point into the run's working directory"),
        ("cd lib && python3 -m pip install -q --editable ./lib", "point into the run's"),
        ("pip3 install -e /home/me/lib", "changes the environment"),
        ("pip install einops", "changes the environment"),
        ("sudo apt-get -y install git", "changes the environment"),
        ("sed -i s/a/b/ /opt/site-packages/x.py", "changes the environment"),
        ("export PIP=1", None),
        ("# pip install x", None),
        ("pip list", None),
        ("python -m venv $TMPDIR/v && . $TMPDIR/v/bin/activate && pip install -e .", None),
        ("pip install --target lib einops", None),
    ],
)
def test_lines_that_change_what_all_jobs_share(tmp_path: Path, line: str, said: str | None) -> None:
    found = notes(hook(tmp_path, f"set -x\n{line}\n"), in_container=False)
    assert len(found) == (said is not None)
    assert said is None or (said in found[0] and line in found[0])
    assert notes(hook(tmp_path, line), in_container=True) == []
