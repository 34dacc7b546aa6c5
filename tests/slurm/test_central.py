"""An installation for all users: which Python is first in a job's PATH, and where it finds ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from detslurm._base import central, contract


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


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "/l"), ("", "/l"), ("/a:/b", "/a:/b:/l"), ("/l:/a", "/a:/l")]
)
def test_the_library_comes_last(given: str | None, expected: str) -> None:
    env = {"HOME": "/home/me"} if given is None else {"HOME": "/home/me", "PYTHONPATH": given}
    assert central.with_library(env, "/l") == {"HOME": "/home/me", "PYTHONPATH": expected}
