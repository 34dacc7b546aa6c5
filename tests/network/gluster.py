"""GlusterFS on one machine: a brick, and nodes that mount it at the same path.

Everything lives in namespaces that begin and end with the process that made them: mounts, daemons
and whatever runs on a node are gone when it is, killed or not. Run as a module it is that process:
`python3 -m tests.network.gluster FOLDER SECONDS NODE...` with the time-outs of all caches.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final

from tests.cluster.namespaces import may_unshare
from tests.cluster.waiting import wait_for

PROGRAMS: Final = ("glusterfsd", "glusterfs", "unshare", "nsenter", "setpriv")
# A busy machine takes its time.
PATIENCE: Final = 240.0

_BRICK = """\
volume posix
  type storage/posix
  option directory {folder}/brick
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume export
  type performance/io-threads
  subvolumes locks
end-volume
volume server
  type protocol/server
  option transport-type socket
  option transport.address-family unix
  option transport.socket.listen-path {socket}
  option auth.addr.export.allow *
  subvolumes export
end-volume
"""
_CLIENT = """\
volume client
  type protocol/client
  option transport-type socket
  option transport.address-family unix
  option transport.socket.connect-path {socket}
  option remote-host localhost
  option remote-subvolume export
end-volume
volume write-behind
  type performance/write-behind
  subvolumes client
end-volume
volume md-cache
  type performance/md-cache
  subvolumes write-behind
end-volume
"""


def missing() -> str | None:
    """Why there can be none here."""
    if not may_unshare():
        return "only root can mount, and not in every container"
    if not Path("/dev/fuse").exists():
        return "no /dev/fuse"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else None


@dataclass(frozen=True)
class Node:
    """A node with a mount and a name of its own."""

    name: str
    pid: int
    path: Path

    def start(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start a program there."""
        enter = ["nsenter", "-t", str(self.pid), "--mount", "--uts", "--pid", "--"]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*enter, *argv], env=dict(env), text=True, stdout=pipe, stderr=subprocess.STDOUT
        )

    def run(self, argv: Sequence[str], env: Mapping[str, str]) -> str:
        """What a program prints there; it must succeed."""
        return finished(self.start(argv, env))


def finished(process: subprocess.Popen[str]) -> str:
    """What a program has printed by its end, which must be a good one."""
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    return said


@contextmanager
def mounted(folder: Path, seconds: int, names: Sequence[str]) -> Iterator[list[Node]]:
    """Nodes that see one volume, and remember what it said for so many seconds."""
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    inside = [sys.executable, "-m", "tests.network.gluster", str(folder), str(seconds), *names]
    room = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *apart, *inside],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert room.stdout is not None
        said = room.stdout.readline().split()
        assert len(said) == len(names), (folder / "log").read_text()
        outer = {inner: pid for pid, inner in _inner_pids(room.pid)}
        places = zip(names, map(int, said), strict=True)
        yield [Node(name, outer[inner], folder / "mount") for name, inner in places]
    finally:
        room.kill()
        room.wait()
        for pipe in (room.stdin, room.stdout):
            if pipe is not None:
                pipe.close()


def _inner_pids(root: int) -> Iterator[tuple[int, int]]:
    """Pids of a process and of all below it, here and as they are in their own namespace."""
    try:
        children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
        status = Path(f"/proc/{root}/status").read_text()
    except OSError:  # it has ended: GlusterFS mounts by a child
        return
    (line,) = (line for line in status.splitlines() if line.startswith("NSpid:"))
    yield root, int(line.split()[-1])
    for pid in map(int, children):
        yield from _inner_pids(pid)


# -- the process that makes it all ---------------------------------------------------------------


def _serve(folder: Path, seconds: int, names: Sequence[str]) -> None:
    address = folder / "brick.sock"
    for name in ("brick", "mount"):
        (folder / name).mkdir()
    for name, text in (("brick.vol", _BRICK), ("client.vol", _CLIENT)):
        (folder / name).write_text(text.format(folder=folder, socket=address))
    with (folder / "log").open("w") as log:
        _daemon(["glusterfsd", "-N", "-f", f"{folder}/brick.vol", "-l", f"{folder}/log"], log)
        wait_for(lambda: _listens(address), PATIENCE, "the brick")
        nodes = [_client(folder, seconds, name, log) for name in names]
        for name, node in zip(names, nodes, strict=True):
            mounted = partial(_has_mounted, node.pid, folder / "mount")
            wait_for(mounted, PATIENCE, f"the mount of {name}")
    print(*(node.pid for node in nodes), flush=True)
    sys.stdin.read()


def _client(folder: Path, seconds: int, name: str, log: IO[str]) -> subprocess.Popen[bytes]:
    times = [f"--{what}-timeout={seconds}" for what in ("attribute", "entry", "negative")]
    mount = ["glusterfs", "-N", "-f", f"{folder}/client.vol", "-l", f"{folder}/log", *times]
    script = 'hostname "$0" && exec "$@"'
    apart = ["unshare", "--mount", "--uts", "sh", "-c", script, name]
    return _daemon([*apart, *mount, f"{folder}/mount"], log)


def _daemon(argv: Sequence[str], log: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _listens(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(address)) == 0


def _has_mounted(pid: int, path: Path) -> bool:
    return f" {path} " in Path(f"/proc/{pid}/mounts").read_text()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
