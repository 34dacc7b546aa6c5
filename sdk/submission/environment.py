"""The environment that an experiment's nodes stage: which files it has, and one archive of them.

It is named after what every file looks like from outside: the next submission finds it again unless
anything has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import msgspec

from detslurm._base.quantities import counted, human_size
from detslurm.sdk.errors import SubmitError
from detslurm.store import Store, fs, records
from detslurm.store.errors import explained

_FORMAT = "1"
# Where a file server answers slowly, many questions at once are what makes it fast.
_THREADS = 16
_SMALL = 1 << 20
# Entries of `python -m venv`; a user's directory may have data beside these.
_OF_VENV = frozenset({"bin", "etc", "include", "lib", "lib64", "pyvenv.cfg", "share"})
# Of the base environment: the others, and what all of them were installed from.
_NOT_OF_CONDA = frozenset({"envs", "pkgs"})
_DISTRIBUTION = re.compile(r"detslurm-([^-]+)\.dist-info")


@dataclass(frozen=True)
class EnvironmentFile:
    """A file or a symbolic link, as it looks from outside."""

    name: str  # its path in the environment
    mode: int
    size: int
    mtime_ns: int
    target: str | None = None  # of a link

    @property
    def is_cached(self) -> bool:
        """Whether Python makes it by itself, at any time: then it is no news."""
        return "/__pycache__/" in self.name


@dataclass(frozen=True)
class EnvironmentFiles:
    """An environment to stage."""

    prefix: Path
    entries: tuple[EnvironmentFile, ...]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(entry.size for entry in self.entries)

    @property
    def count(self) -> int:
        """How many files, without those that Python makes by itself."""
        return sum(not entry.is_cached for entry in self.entries)

    @property
    def digest(self) -> str:
        """A name for this state of it."""
        said = [_FORMAT, sys.version, str(self.prefix)]
        said += (repr(entry) for entry in self.entries if not entry.is_cached)
        return hashlib.sha256("\0".join(said).encode()).hexdigest()[:20]

    @property
    def summary(self) -> str:
        """How much it is, for people."""
        return f"{self.prefix} ({human_size(self.size)} and {counted(self.count, 'file')})"


def find_environment(wanted: Literal[True] | str) -> EnvironmentFiles:
    """The environment that a `slurm.stage_environment` means. Raises `SubmitError`."""
    prefix = Path(sys.prefix if wanted is True else wanted).expanduser().absolute()
    try:
        return _listed(prefix)
    except OSError as err:
        raise SubmitError(f"slurm.stage_environment: {err.filename}: {err.strerror}") from err


def _listed(prefix: Path) -> EnvironmentFiles:
    top = set(os.listdir(prefix))  # noqa: PTH208
    if "conda-meta" in top:
        chosen = top - _NOT_OF_CONDA
    elif "pyvenv.cfg" in top:
        chosen = top & _OF_VENV
    else:
        raise SubmitError(
            f"slurm.stage_environment: {prefix} is neither a virtual environment (pyvenv.cfg) nor"
            " one of conda (conda-meta): submit from such an environment, or give its path"
        )
    return EnvironmentFiles(prefix, tuple(sorted(_scan(prefix, chosen), key=lambda e: e.name)))


def _scan(prefix: Path, top: Iterable[str]) -> Iterator[EnvironmentFile]:

    def listing(folder: str) -> list[tuple[str, os.stat_result, str | None]]:
        found = []
        with os.scandir(prefix / folder) as names:
            for one in names:
                name = f"{folder}/{one.name}" if folder else one.name
                if folder or one.name in chosen:
                    link = os.readlink(one.path) if one.is_symlink() else None  # noqa: PTH115
                    found.append((name, one.stat(follow_symlinks=False), link))
        return found

    chosen = frozenset(top)
    with ThreadPoolExecutor(_THREADS) as pool:
        level = [""]
        while level:
            below = []
            for found in pool.map(listing, level):
                for name, status, link in found:
                    if stat.S_ISDIR(status.st_mode):
                        below.append(name)
                    elif link is not None:
                        inside = _link_inside(prefix, name, link)
                        yield EnvironmentFile(name, 0o777, 0, status.st_mtime_ns, inside)
                    elif stat.S_ISREG(status.st_mode):
                        mode = stat.S_IMODE(status.st_mode)
                        yield EnvironmentFile(name, mode, status.st_size, status.st_mtime_ns)
            level = below


def _link_inside(prefix: Path, name: str, target: str) -> str:
    folder = (prefix / name).parent
    whole = os.path.normpath(folder / target)
    if not whole.startswith(f"{prefix}/"):
        return whole
    return os.path.relpath(whole, folder) if target.startswith("/") else target


# -- the archive ---------------------------------------------------------------------------------


def keep(
    environment: EnvironmentFiles, store: Store, progress: Callable[[int, int], None]
) -> records.Environment:
    """The archive of an environment, packed unless it is there already. Raises `SubmitError`."""
    path = archive_path(environment, store)
    try:
        size = _used_again(path) or _pack(environment, path, progress)
    except OSError as err:
        raise SubmitError(
            f"slurm.stage_environment: can't keep the archive of {environment.prefix}"
            f" ({human_size(environment.size)}): {explained(err, str(path))}"
        ) from err
    return records.Environment(
        archive=str(path),
        prefix=str(environment.prefix),
        size=size,
        files=environment.count,
        detslurm=_version_in(environment),
    )


def archive_path(environment: EnvironmentFiles, store: Store) -> Path:
    """Where the archive of this state of an environment is, or will be."""
    return store.own("environments") / f"{environment.digest}.tar"


def is_packed(environment: EnvironmentFiles, store: Store) -> bool:
    """Whether an earlier submission has packed this state of it."""
    return archive_path(environment, store).exists()


def _used_again(path: Path) -> int:
    """Bytes of an existing archive; its time is that of the last submission with it."""
    try:
        os.utime(path)
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _version_in(environment: EnvironmentFiles) -> str | None:
    parts = (part for entry in environment.entries for part in entry.name.split("/")[3:4])
    return next((m[1] for part in parts if (m := _DISTRIBUTION.fullmatch(part))), None)


def _pack(environment: EnvironmentFiles, path: Path, progress: Callable[[int, int], None]) -> int:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = fs.temporary_name(str(path))
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as out:
            _write(environment, out, progress)
            out.flush()
            os.fsync(handle)
        now = _listed(environment.prefix)
        if now.digest != environment.digest:
            raise SubmitError(
                f"slurm.stage_environment: {environment.prefix} has changed while it was packed:"
                " submit again when nothing is being installed there"
            )
        # Another submission may have been faster: it may have found more modules compiled.
        fs.link_new(temporary, str(path))
        return path.stat().st_size
    finally:
        fs.discard(temporary)


def _write(environment: EnvironmentFiles, out: Any, progress: Callable[[int, int], None]) -> None:
    whole, done = environment.size, 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        scripts = []
        for entry, data in _read_ahead(environment):
            _add(tar, environment.prefix, entry, data)
            if data is not None and _names_prefix(environment.prefix, entry, data):
                scripts.append(entry.name)
            done += entry.size
            progress(done, whole)
        manifest = {"prefixes": _prefixes(environment.prefix), "scripts": scripts}
        text = msgspec.json.encode(manifest)
        _add(tar, environment.prefix, EnvironmentFile(records.MANIFEST, 0o600, len(text), 0), text)


def _read_ahead(environment: EnvironmentFiles) -> Iterator[tuple[EnvironmentFile, bytes | None]]:
    """The entries in order, small files with their content, which was asked for before."""

    def content(entry: EnvironmentFile) -> bytes | None:
        small = entry.target is None and entry.size <= _SMALL
        return (environment.prefix / entry.name).read_bytes() if small else None

    with ThreadPoolExecutor(_THREADS) as pool:
        waiting: deque[tuple[EnvironmentFile, Future[bytes | None]]] = deque()
        for entry in environment.entries:
            waiting.append((entry, pool.submit(content, entry)))
            if len(waiting) >= 4 * _THREADS:
                first, future = waiting.popleft()
                yield first, future.result()
        for entry, future in waiting:
            yield entry, future.result()


def _add(tar: tarfile.TarFile, prefix: Path, entry: EnvironmentFile, data: bytes | None) -> None:
    info = tarfile.TarInfo(entry.name)
    # In whole seconds, as compiled modules name that of their source.
    info.mode, info.mtime = entry.mode | stat.S_IRUSR | stat.S_IWUSR, entry.mtime_ns // 10**9
    if entry.target is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
        tar.addfile(info)
    elif data is not None:
        info.size = len(data)
        tar.addfile(info, BytesIO(data))
    else:
        info.size = entry.size
        with (prefix / entry.name).open("rb") as file:
            tar.addfile(info, file)


def _names_prefix(prefix: Path, entry: EnvironmentFile, data: bytes) -> bool:
    return entry.name.startswith("bin/") and b"\0" not in data and os.fsencode(prefix) in data


def _prefixes(prefix: Path) -> list[str]:
    return list(dict.fromkeys((str(prefix), os.path.realpath(prefix))))
