"""Where files that a node's processes share are made: on a disk of the node's own, with room."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm._base import node_files
from detslurm._base.flag import PreemptFlag


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """TMPDIR of this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def flags() -> Iterator[list[PreemptFlag]]:
    """Closed at the end."""
    made: list[PreemptFlag] = []
    yield made
    for flag in made:
        flag.close()
        assert not Path(flag.name).exists()


def test_only_its_user_can_open_it(tmp: Path, flags: list[PreemptFlag]) -> None:
    """Whatever the umask; it lies where the working directory does, which a container sees."""
    before = os.umask(0)
    try:
        flags.append(PreemptFlag.create())
    finally:
        os.umask(before)
    path = Path(flags[0].name)
    assert path.parent == tmp
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "fuse.glusterfs", "btrfs", "never heard of"])
def test_a_shared_directory_is_left_for_one_of_the_nodes_own(
    tmp: Path, flags: list[PreemptFlag], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A kind that isn't known to be local may be shared."""
    other = "tmpfs" if Path("/dev/shm").stat().st_dev != tmp.stat().st_dev else kind
    device, memory = node_files._device(tmp), node_files._device(Path("/dev/shm"))
    monkeypatch.setattr(node_files, "_kinds", lambda: {memory: other, device: kind})
    flags.append(PreemptFlag.create())
    assert Path(flags[0].name).parent == (Path("/dev/shm") if other == "tmpfs" else tmp)


def test_a_full_disk_is_left_for_one_with_room(
    tmp: Path, flags: list[PreemptFlag], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays behind there, and nobody meets the full disk first when the flag is raised."""

    real = os.posix_fallocate

    def allocate(fd: int, offset: int, size: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().parent == tmp:
            raise OSError(errno.ENOSPC, "full")
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    flags.append(PreemptFlag.create())
    assert Path(flags[0].name).parent != tmp
    assert not list(tmp.iterdir())


def test_a_directory_that_can_not_be_listed_is_not_swept(
    tmp: Path, flags: list[PreemptFlag], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some sites let everybody create files there, and nobody see those of others."""

    def listdir(path: object) -> list[str]:
        raise PermissionError(errno.EACCES, "no right to read", str(path))

    monkeypatch.setattr(os, "listdir", listdir)
    flags.append(PreemptFlag.create())
    assert Path(flags[0].name).parent == tmp


ASKS = """\
from detslurm._base.node_files import temporary_directory
found = temporary_directory()
import tempfile
print(found == tempfile.gettempdir(), found)
"""


@pytest.mark.parametrize("name", ["TMPDIR", "TEMP", "TMP"])
def test_temporary_files_go_where_pythons_go(name: str, tmp_path: Path) -> None:
    """Without asking `tempfile`, which agents do without, whatever variable a site has set."""
    env = {k: v for k, v in os.environ.items() if k not in ("TMPDIR", "TEMP", "TMP")}
    done = subprocess.run(
        [sys.executable, "-c", ASKS], env={**env, name: str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == f"True {tmp_path}\n"


_SOCKETS = """
import os, signal, socket, sys, tempfile
tempfile.tempdir = sys.argv[1]
from detslurm._base.node_files import make_socket_directory
made = make_socket_directory()
socket.socket(socket.AF_UNIX).bind(str(made / ("k" * 49)))
print(made, flush=True)
os.kill(os.getpid(), signal.SIGKILL) if len(sys.argv) > 2 else None
"""


def test_a_directory_for_sockets_is_short_private_and_not_left(tmp_path: Path) -> None:
    """The next process that begins on the node removes that of a killed one, and follows no link
    that leads elsewhere."""
    folder = tempfile.mkdtemp(dir="/tmp")
    mine = tmp_path / "mine"
    mine.mkdir()
    try:
        killed = subprocess.run([sys.executable, "-c", _SOCKETS, folder, "9"], stdout=-1, text=True)
        left = Path(killed.stdout.strip())
        assert stat.S_IMODE(left.stat().st_mode) == 0o700
        name = next(path.name for path in left.parent.iterdir() if path.is_symlink())
        (left.parent / f"{name}-2").symlink_to(mine)
        subprocess.run([sys.executable, "-c", _SOCKETS, folder], check=True, stdout=-1)
        assert not [*Path(folder).iterdir()] and mine.is_dir()
    finally:
        shutil.rmtree(folder)
