"""The file of a bundle: an archive that begins with a manifest of all its files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated, Final, Literal, Self

import msgspec

from detslurm.sdk.errors import BundleError
from detslurm.store.provenance import CodeVersion, Software

NAME: Final = "manifest.json"
CONFIG: Final = "config.json"
FACTS: Final = "facts.json"
VERSIONS: Final = "provenance.json"
VERSION: Final = 1
LARGEST: Final = 1 << 28
"""How many bytes a manifest may have, and every other file that is read whole."""
UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
RUN_FILE: Final = re.compile(
    r"run-\d{1,6}(\.start\.json|\.end\.json|\.jsonl|\.log|\.usage\.json|"
    r"\.(node|rank)\d+\.jsonl|\.artifacts\.jsonl)"
)

_DEEPEST = 100  # directories within each other
_PART = re.compile(r"[^/\0\\]{1,255}")
_TRIAL = re.compile(r"trials/(0|[1-9]\d{0,6})/([^/]+)")
_EVENT = re.compile(r"search/\d{6,9}\.json")
_BLOCK = 1 << 20
_LONGEST_HEADER = 1 << 16
_GZIP = b"\x1f\x8b"
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


Progress = Callable[[int, int], None]
"""Gets how many bytes are done, and of how many."""


class ByteMeter:
    """Adds up bytes and reports them."""

    def __init__(self, progress: Progress, whole: int) -> None:
        self._progress, self._done, self._whole = progress, 0, whole

    def add(self, count: int) -> None:
        """Report `count` more bytes as done."""
        self._done += count
        self._progress(self._done, max(self._done, self._whole))


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of the bundle."""

    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str
    executable: bool = False


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The code and the software that the experiment ran."""

    code: CodeVersion | None = None
    software: Software | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first file of a bundle. `masked` names the keys of the configuration whose values are
    left out."""

    format: Literal["detslurm bundle"] = "detslurm bundle"
    version: int = VERSION
    experiment: int
    owner: str
    made: float
    masked: tuple[str, ...]
    checkpoints: tuple[Annotated[str, msgspec.Meta(pattern=rf"^{UUID.pattern}\Z")], ...]
    directories: tuple[str, ...]
    files: dict[str, File]

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(file.size for file in self.files.values())

    @property
    def checkpoints_size(self) -> int:
        """Bytes in the files of checkpoints."""
        return sum(f.size for name, f in self.files.items() if name.startswith("checkpoints/"))


class _Header(tarfile.TarInfo):
    """The header of a file, or more about the next file; tarfile reads the latter whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Raise `ReadError` for a header that takes more memory than a bundle's ever does."""
        header = super().frombuf(buf, encoding, errors)
        if header.type not in _PLAIN and not 0 <= header.size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"one of its headers has {header.size} bytes")
        return header


def open_bundle(path: Path) -> tarfile.TarFile:
    """The archive of a bundle, `.tar` or `.tar.gz`, to be read once from its beginning."""
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP
    return tarfile.open(path, "r|gz" if packed else "r|", tarinfo=_Header)


def read_manifest(archive: tarfile.TarFile) -> Manifest:
    """The first file of an archive. Raises `BundleError` if it is not that of a bundle."""
    first = archive.next()
    if first is None or first.name != NAME or not first.isreg() or first.size > LARGEST:
        raise BundleError(f"it does not begin with {NAME}: it is no bundle")
    file = archive.extractfile(first)
    assert file is not None
    return _parse(file.read())


def unpack(archive: tarfile.TarFile, manifest: Manifest, stage: Path, meter: ByteMeter) -> None:
    """Every file, with its size and checksum of the manifest, and nothing else."""
    free = shutil.disk_usage(stage).free
    if manifest.size > free:
        raise BundleError(f"it doesn't fit: it has {manifest.size} bytes, and {free} are free")
    for name in manifest.directories:
        (stage / name).mkdir(parents=True, exist_ok=True)
    missing = dict(manifest.files)
    while (member := archive.next()) is not None:
        expected = missing.pop(member.name, None)
        if expected is None or not member.isreg() or member.size != expected.size:
            raise BundleError(f"{member.name[:200]!r} contradicts the manifest")
        file = archive.extractfile(member)
        assert file is not None
        _extract(file, stage / member.name, expected, meter)
        archive.members = []  # type: ignore[attr-defined]  # or it would remember them all
    if missing:
        raise BundleError(f"{next(iter(missing))} is missing: the file is not whole")


def _extract(file: IO[bytes], target: Path, expected: File, meter: ByteMeter) -> None:
    """Write a file; its directories come to be with it, and nothing is written through a link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    mode = 0o755 if expected.executable else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, mode), "wb") as out:
        while block := file.read(_BLOCK):
            digest.update(block)
            out.write(block)
            meter.add(len(block))
        size = out.tell()
    if size != expected.size or digest.hexdigest() != expected.sha256:
        raise BundleError(f"{target.name}: its content differs from the bundled one")


def _parse(data: bytes) -> Manifest:
    """A manifest in which every name is harmless. Raises `BundleError`."""
    # msgspec reads no half surrogates, which stand for bytes of a name that are no UTF-8.
    manifest = msgspec.convert(json.loads(data), Manifest)
    if manifest.version > VERSION:
        raise BundleError(f"it was made by a newer detslurm (version {manifest.version})")
    if missing := {CONFIG, FACTS} - manifest.files.keys():
        raise BundleError(f"it lacks {', '.join(sorted(missing))}")
    for name in (*manifest.files, *manifest.directories):
        _check_name(name, manifest.checkpoints)
    return manifest


def _check_name(name: str, checkpoints: tuple[str, ...]) -> None:
    parts = name.split("/")
    whole = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    top = parts[0]
    known = (
        name in (CONFIG, FACTS, VERSIONS)
        or (top == "code" and len(parts) > 1)
        or (top == "checkpoints" and len(parts) > 2 and parts[1] in checkpoints)
        or bool(_EVENT.fullmatch(name))
        or bool((found := _TRIAL.fullmatch(name)) and RUN_FILE.fullmatch(found[2]))
    )
    if not (whole and known and len(name) < 4000 and len(parts) <= _DEEPEST):
        raise BundleError(f"{name[:200]!r} is no name of a file in a bundle")
