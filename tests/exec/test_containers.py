"""Code behind `container_prefix`, in what containers are made of: namespaces of its own."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from detslurm._base.contract import PREEMPT_FLAG
from detslurm._base.flag import PreemptFlag
from detslurm.exec import container_library
from detslurm.exec.agent_protocol import KILL
from detslurm.exec.containers import same_mounts
from tests.cluster import processes
from tests.cluster.waiting import wait_for
from tests.exec.nodes import agent, reports

PATIENCE = 120

# Everything but its own copy of /dev and /proc, as a container without --ipc=host sees the host.
_BWRAP = "bwrap --bind / / --dev /dev --proc /proc --unshare-user --unshare-pid"
PREFIXES = ["unshare -U", "unshare -Ur", "unshare -Ump --fork", _BWRAP]

# Uses the image's Python, which has nothing installed, and leaves with 7 once it is preempted.
TRAIN = """\
    import json, os, pathlib, sys, time
    import detslurm as det

    here = pathlib.Path(os.environ["HERE"])
    import determined  # stands for detslurm there, too
    (here / "seen.json").write_text(json.dumps([sys.executable, determined.core.__file__]))
    with det.core.init() as core:
        (here / "up").touch()
        while not core.preempt.should_preempt():
            time.sleep(0.01)
    raise SystemExit(7)
"""


ATTACH = ["-c", "from detslurm._base.flag import PreemptFlag; PreemptFlag.of_this_node()"]
WRAPPED = ["-m", "detslurm.launch.wrap_rank", "0", "true"]


def needs(prefix: str) -> str:
    """The prefix, where it works: user namespaces are refused in a chroot and on some sites."""
    words = prefix.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run([*words, "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no containers here: {done.stderr.strip()}")
    return prefix


@pytest.fixture(params=PREFIXES)
def prefix(request: pytest.FixtureRequest) -> str:
    return needs(request.param)


def test_the_flag_is_seen_both_ways(tmp_path: Path, prefix: str) -> None:
    """The code hears of a preemption, the agent of its promise to leave and of its exit status."""
    with agent(tmp_path, TRAIN, prefix) as process:
        wait_for((tmp_path / "up").exists, PATIENCE, "the code")
        process.send_signal(signal.SIGTERM)
        ended = reports(process)["ended"]
    assert (ended["exit_code"], ended["preempted"], ended["acknowledged"]) == (7, True, True)
    python, ours = json.loads((tmp_path / "seen.json").read_text())
    assert python != sys.executable, "the host's environment hides the image's Python"
    assert "-lib/detslurm/" in ours
    assert not list((tmp_path / "tmp").iterdir())


def test_nothing_survives_a_kill(tmp_path: Path, prefix: str) -> None:
    """Neither processes nor files."""
    with agent(tmp_path, TRAIN, prefix) as process:
        wait_for((tmp_path / "up").exists, PATIENCE, "the code")
        below = processes.descendants({process.pid})
        assert process.stdin is not None
        process.stdin.write(f"{KILL}\n".encode())
        process.stdin.flush()
        assert reports(process)["ended"]["exit_code"] == 128 + signal.SIGKILL
    wait_for(lambda: not any(map(processes.alive, below)), PATIENCE, "the end of its processes")
    assert not list((tmp_path / "tmp").iterdir())


def test_the_next_agent_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    """Flag, working directory and library of a run whose agent was killed with -9. The code sees
    from inside its container that the agent is gone, and ends."""
    with agent(tmp_path, TRAIN, needs(PREFIXES[2])) as process:
        wait_for((tmp_path / "up").exists, PATIENCE, "the code")
        below = processes.descendants({process.pid})
    wait_for(lambda: not any(map(processes.alive, below)), PATIENCE, "the end of its processes")
    assert len(list((tmp_path / "tmp").iterdir())) == 3
    (tmp_path / "up").unlink()
    again = tmp_path / "again"
    again.mkdir()
    (again / "tmp").symlink_to(tmp_path / "tmp")
    with agent(again, TRAIN) as process:
        wait_for((again / "up").exists, PATIENCE, "the code")
        process.send_signal(signal.SIGTERM)
        reports(process)
    assert not list((tmp_path / "tmp").iterdir())


def test_paths_are_mounted_once_and_behind_their_links(tmp_path: Path) -> None:
    """A home behind a link, a store that a link in it leads out to, and the root, which is none."""
    disk, scratch = tmp_path / "disk", tmp_path / "scratch"
    for folder in (disk / "alice", scratch / "store"):
        folder.mkdir(parents=True)
    home = tmp_path / "home"
    home.symlink_to(disk)
    (disk / "alice" / "detslurm").symlink_to(scratch / "store")
    paths = [home / "alice", home / "alice" / "detslurm", scratch / "store" / "gone", "/"]
    found = [(m.source, m.target) for m in same_mounts(map(str, paths))]
    real = [str(disk / "alice"), str(scratch / "store")]
    assert found == [*zip(real, real, strict=True), (real[0], str(home / "alice"))]


def test_the_copy_of_a_read_only_installation_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else some packages could not be copied into others, nor the whole be removed."""
    for name in (*container_library._PACKAGES, *container_library._COMPILED):
        folder = tmp_path / name.replace(".", "/")
        folder.mkdir()
        (folder / "__init__.py").touch()
    for path in tmp_path.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr(
        container_library, "_origin", lambda name: tmp_path / name.replace(".", "/")
    )
    container_library._make(library := tmp_path / "lib")
    copied = list(library.rglob("*"))
    assert len(copied) == 11
    assert all(path.stat().st_mode & stat.S_IWUSR for path in copied)


@pytest.mark.parametrize("command", [ATTACH, WRAPPED])
def test_a_container_that_can_not_see_the_flag_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]
) -> None:
    """At once, and not when it is preempted: scripts and the launchers' ranks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(PREEMPT_FLAG, PreemptFlag.create().name)
    container = [*needs("bwrap --bind / /").split(), "--tmpfs", str(tmp_path), "--chdir", "/"]
    done = subprocess.run(
        [*container, sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    assert f"a container must see {tmp_path} of the host" in done.stderr
