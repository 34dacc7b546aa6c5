"""Working directories where TMPDIR lies on a file system that other nodes see, too."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm._base.process import Identity, node
from detslurm.exec.workdir import make_workdir


def directory(tmp: Path, owner: object) -> Path:
    path = tmp / f"detslurm-{os.getuid()}-{owner}-1.1.1"
    path.mkdir()
    return path


@pytest.fixture
def gone() -> Identity:
    """A process of this node that has ended."""
    with subprocess.Popen(["sleep", "60"]) as process:
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        process.kill()
    return Identity(node(), process.pid, start)


def test_what_nobody_waited_for_yet_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's process still takes signals then, which is no sign that /proc hides it."""

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    with subprocess.Popen(["sleep", "60"]) as process:
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        zombie = Identity(node(), process.pid, start)
        monkeypatch.setattr(os, "kill", refuse)
        assert zombie.alive() is True
        monkeypatch.undo()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(os, "kill", refuse)
        assert zombie.alive() is False
    assert zombie.alive() is None, "it may be hidden"


def test_what_a_killed_process_wrote_for_tensorboard_goes_with_the_next(tmp_path: Path) -> None:
    """Code that is run by hand has no agent to clean up behind it."""
    makes = (
        "from detslurm._base.node_files import make_directory; path = make_directory('tensorboard')"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}

    def run(more: str) -> Path:
        program = [sys.executable, "-c", f"{makes}; print(path, flush=True); import os; {more}"]
        return Path(subprocess.run(program, env=env, capture_output=True, text=True).stdout.strip())

    killed = run("os.kill(os.getpid(), 9)")
    assert killed.parent == tmp_path and killed.is_dir()
    assert run(f"assert not os.path.exists({str(killed)!r})").parent == tmp_path
    assert not [*tmp_path.iterdir()]


def test_only_what_is_provably_dead_goes(tmp_path: Path, gone: Identity) -> None:
    """Another node's pids say nothing here, whether they are in use here or not."""
    (tmp_path / "code").mkdir()
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    own = Identity.own()
    dead = [
        directory(tmp, gone),
        directory(tmp, own._replace(started="1")),  # its pid has gone to another process since
    ]
    kept = [
        directory(tmp, own),
        directory(tmp, gone._replace(node="0123456789abcdef")),
        directory(tmp, own._replace(node="0123456789abcdef", started="1")),
        directory(tmp, "0123456789abcdef-7"),
        directory(tmp, 7),
    ]
    made = make_workdir(tmp_path / "code", "2.1.1", tmp=tmp)
    assert not any(path.exists() for path in dead)
    assert all(path.exists() for path in [made, *kept])
