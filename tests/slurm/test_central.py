"""An installation for all users: which Python is first in a job's PATH, and where it finds ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detslurm._base import central, contract
from detslurm.slurm.request import JobRequest
from detslurm.slurm.shell_lines import command_line


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_users_python_is_first_where_one_version_is_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, mine = program(tmp_path / "apps/bin/python3"), program(tmp_path / "mine/bin/python3")
    monkeypatch.setattr(sys, "executable", str(installed))
    monkeypatch.setenv("PATH", f"{mine.parent}:/usr/bin")
    assert (central.library(), central.first_in_path()) == (None, str(installed.parent))
    library = tmp_path / "apps" / contract.CENTRAL_LIBRARY
    library.mkdir(parents=True)
    assert (central.library(), central.first_in_path()) == (str(library), str(mine.parent))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert central.first_in_path() is None, "the system's Python stays where it is"


def test_a_removed_version_is_replaced_by_the_newest_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = tmp_path / "my apps"
    for version, is_whole in {"0.9.0": True, "0.10.0": True, "0.11.0": False}.items():
        python = program(apps / version / "bin/python3")
        python.write_text(f"#!/bin/sh\necho {version} $*\n")
        if is_whole:
            (apps / version / contract.CENTRAL_LIBRARY / "detslurm").mkdir(parents=True)
    gone = apps / "0.8.0"
    monkeypatch.setattr(central, "library", lambda: str(gone / contract.CENTRAL_LIBRARY))
    command = (str(gone / "bin/python3"), "-PS", "/gone/startup.py", "detslurm.exec.runner", "7")
    script = command_line(JobRequest(name="job", command=command, folder=tmp_path))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "0.10.0 -P -m detslurm.exec.runner 7\n"
    assert f"'{gone}' is not there: {apps}/0.10.0/bin/python3 goes on" in done.stderr


def test_a_version_that_is_removed_while_it_runs_is_replaced_by_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("0.9.0", "0.10.0", "0.10.0rc1"):
        (tmp_path / version / contract.CENTRAL_LIBRARY / "detslurm").mkdir(parents=True)
    own = program(tmp_path / "0.8.0" / "bin" / "python3")
    monkeypatch.setattr(sys, "executable", str(own))
    assert central.replacement() is None
    own.unlink()
    assert central.replacement() == str(tmp_path / "0.10.0" / "bin" / "python3")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "x" / "bin" / "python3"))
    assert central.replacement() is None


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "/l"), ("", "/l"), ("/a:/b", "/a:/b:/l"), ("/l:/a", "/a:/l")]
)
def test_the_library_comes_last(given: str | None, expected: str) -> None:
    env = {"HOME": "/home/me"} if given is None else {"HOME": "/home/me", "PYTHONPATH": given}
    assert central.with_library(env, "/l") == {"HOME": "/home/me", "PYTHONPATH": expected}
