"""The files of a bundle, out of its archive: what its manifest announces, and nothing else."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path
from typing import IO, Self, cast

from detslurm.sdk.bundle.manifest import LARGEST, NAME, File, Manifest, parse
from detslurm.sdk.bundle.metering import ByteMeter, Metered
from detslurm.sdk.errors import BundleError

_BLOCK = 1 << 20
_LONGEST_HEADER = 1 << 16
_GZIP = b"\x1f\x8b"
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


class _Header(tarfile.TarInfo):
    """The header of a file, or more about the next one; tarfile reads the latter whole."""

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
    return parse(file.read())


def unpack(archive: tarfile.TarFile, manifest: Manifest, stage: Path, meter: ByteMeter) -> None:
    """Every file, with its size and checksum as the manifest says, and nothing else."""
    free = shutil.disk_usage(stage).free
    if manifest.size > free:
        raise BundleError(f"it doesn't fit: it has {manifest.size} bytes, and {free} are free")
    for name in manifest.directories:
        (stage / name).mkdir(parents=True, exist_ok=True)
    missing = dict(manifest.files)
    while (member := archive.next()) is not None:
        expected = missing.pop(member.name, None)
        if expected is None or not member.isreg() or member.size != expected.size:
            raise BundleError(f"{member.name[:200]!r} is not what the manifest says")
        file = archive.extractfile(member)
        assert file is not None
        _extract(cast(IO[bytes], Metered(file, meter)), stage / member.name, expected)
        archive.members = []  # type: ignore[attr-defined]  # or it would remember them all
    if missing:
        raise BundleError(f"{next(iter(missing))} is missing: the file is not whole")


def _extract(file: IO[bytes], target: Path, expected: File) -> None:
    """Write a file; its directories come to be with it, and nothing is written through a link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    mode = 0o755 if expected.executable else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, mode), "wb") as out:
        while block := file.read(_BLOCK):
            digest.update(block)
            out.write(block)
        size = out.tell()
    if size != expected.size or digest.hexdigest() != expected.sha256:
        raise BundleError(f"{target.name}: its content is not what was bundled")
