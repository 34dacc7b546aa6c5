"""Does a file system keep the promises that the store stands on? Asked by doctor and submit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from detslurm.store import fs
from detslurm.store.errors import StoreError
from detslurm.store.run_log import RunLog, read_records

_LOW_BYTES = 1 << 30
_LOW_INODES = 10_000
_NODE_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "ramfs", "f2fs"}
)
_VOLATILE = frozenset({"tmpfs", "ramfs"})


class Check(NamedTuple):
    """One promise: whether it holds, the observation, and how long that took."""

    name: str
    ok: bool
    detail: str
    seconds: float


class ProbeReport(NamedTuple):
    """A test of a directory's file system. Errors forbid a store there, warnings do not."""

    path: str
    fs_type: str
    mount_point: str
    free_bytes: int | None
    free_inodes: int | None
    checks: tuple[Check, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether a store may live here."""
        return not self.errors


class _Broken(Exception):
    """A promise that does not hold, in words."""


def probe(path: fs.AnyPath, *, fast: bool = False) -> ProbeReport:
    """Try on `path` what the store needs; the fast variant tries only what rarely holds by luck.

    Everything happens in a directory of its own that is removed again.
    """
    folder = Path(path).expanduser().absolute()
    kind, mount, options = _mount_of(folder)
    checks = tuple(_checks(folder, _FAST if fast else _ALL))
    free_bytes, free_inodes = _free(folder)
    errors = tuple(f"{check.name}: {check.detail}" for check in checks if not check.ok)
    warnings = tuple(_warnings(kind, options, free_bytes, free_inodes))
    return ProbeReport(str(folder), kind, mount, free_bytes, free_inodes, checks, errors, warnings)


def _checks(folder: Path, wanted: Mapping[str, Callable[[Path], str]]) -> Iterator[Check]:
    place = Path(fs.temporary_name(str(folder / "probe")))
    began = time.perf_counter()
    try:
        place.mkdir(0o700)
    except OSError as error:
        text = f"cannot create a directory in {folder}: {error.strerror}"
        yield Check("write", False, text, time.perf_counter() - began)
        return
    try:
        for name, check in wanted.items():
            yield _tried(name, check, place)
    finally:
        fs.remove_tree(place)


def _tried(name: str, check: Callable[[Path], str], place: Path) -> Check:
    began = time.perf_counter()
    try:
        ok, detail = True, check(place)
    except (_Broken, StoreError) as error:
        ok, detail = False, str(error)
    except OSError as error:
        ok, detail = False, f"the file system refused it: {error.strerror}"
    return Check(name, ok, detail, time.perf_counter() - began)


def _put_if_absent(place: Path) -> str:
    target = place / "claim"
    if not fs.put_if_absent(target, b"first"):
        raise _Broken("a new name was reported as taken")
    if fs.put_if_absent(target, b"second"):
        raise _Broken("two writers both claimed one name: link() overwrites here")
    if target.read_bytes() != b"first":
        raise _Broken("a claimed file changed its content")
    return "link() gives a name to one writer only"


def _link_count(place: Path) -> str:
    one = place / "one"
    one.write_bytes(b"")
    (place / "two").hardlink_to(one)
    if one.stat().st_nlink != 2:
        raise _Broken("hard links are not counted: after a lost reply the winner would be unknown")
    return "hard links are counted"


def _exclusive(place: Path) -> str:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    os.close(os.open(place / "exclusive", flags))
    try:
        os.close(os.open(place / "exclusive", flags))
    except FileExistsError:
        return "O_EXCL refuses a name that exists"
    raise _Broken("O_EXCL opened a file that existed")


def _claim(place: Path) -> str:
    if not fs.claim_directory(place / "id"):
        raise _Broken("mkdir() reported a new name as taken")
    if fs.claim_directory(place / "id"):
        raise _Broken("mkdir() made the same directory twice")
    return "mkdir() gives an id to one process only"


def _rename(place: Path) -> str:
    fs.replace_file(place / "snapshot", b"old")
    fs.replace_file(place / "snapshot", b"new")
    if (place / "snapshot").read_bytes() != b"new":
        raise _Broken("rename() did not replace the file")
    (place / "full").mkdir()
    (place / "full" / "file").write_bytes(b"")
    (place / "stage").mkdir()
    if fs.publish_directory(place / "stage", place / "full"):
        raise _Broken("rename() replaced a directory that was not empty")
    return "rename() replaces files whole and spares full directories"


def _fsync(place: Path) -> str:
    with (place / "durable").open("wb") as file:
        file.write(b"data")
        file.flush()
        began = time.perf_counter()
        os.fsync(file.fileno())
        spent = time.perf_counter() - began
    fs.sync_directory(place)
    return f"fsync() works, {1000 * spent:.1f} ms"


def _append(place: Path) -> str:
    with RunLog.open(place / "log") as log:
        log.append({"t": "probe", "n": 1})
        log.flush()
        log.commit({"t": "probe", "n": 2})
    if [record["n"] for record in read_records(place / "log").records] != [1, 2]:
        raise _Broken("appended data do not read back")
    return "appended records read back"


def _private(place: Path) -> str:
    place.chmod(0o700)
    if place.stat().st_mode & 0o077:
        raise _Broken("others can enter a directory of mode 0700: permissions are not kept here")
    return "permissions are kept"


_FAST = {"claim": _put_if_absent, "id": _claim}
_ALL = {
    **_FAST,
    "exclusive": _exclusive,
    "links": _link_count,
    "rename": _rename,
    "fsync": _fsync,
    "append": _append,
    "privacy": _private,
}


def _mount_of(folder: Path) -> tuple[str, str, str]:
    """Type, mount point and options of the file system that holds `folder`."""
    try:
        lines = Path("/proc/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return "unknown", "", ""
    return mount_of(str(folder.resolve()), lines)


def mount_of(path: str, mounts: list[str]) -> tuple[str, str, str]:
    """The entry of /proc/mounts that covers `path`: the longest, and of equals the last."""
    best = ("unknown", "", "")
    for line in mounts:
        fields = line.split()
        if len(fields) < 4:
            continue
        point = _unescaped(fields[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[1]):
            best = (fields[2], point, fields[3])
    return best


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def _free(folder: Path) -> tuple[int | None, int | None]:
    try:
        state = os.statvfs(folder)
    except OSError:
        return None, None
    return state.f_bavail * state.f_frsize, state.f_favail if state.f_files else None


def _warnings(
    kind: str, options: str, free_bytes: int | None, free_inodes: int | None
) -> Iterator[str]:
    if kind in _VOLATILE:
        yield f"{kind} lives in memory: everything is lost when this node restarts"
    elif kind in _NODE_LOCAL:
        yield f"{kind} is usually local to one node: other nodes may not see this directory"
    if "ro" in options.split(","):
        yield "the file system is mounted read-only"
    if free_bytes is not None and free_bytes < _LOW_BYTES:
        yield f"only {free_bytes / 1e6:.0f} MB are free (your quota may leave less)"
    if free_inodes is not None and free_inodes < _LOW_INODES:
        yield f"only {free_inodes} inodes are free (your quota may leave less)"
