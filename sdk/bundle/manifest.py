"""What a bundle says of itself: every file with its size and checksum, and where it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from detslurm.sdk.errors import BundleError

NAME: Final = "manifest.json"
CONFIG: Final = "config.json"
FACTS: Final = "facts.json"
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


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of the bundle."""

    size: int
    sha256: str
    executable: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The first file of a bundle.

    `masked` names the keys of the configuration whose values are left out.
    """

    format: Literal["detslurm bundle"] = "detslurm bundle"
    version: int = VERSION
    experiment: int
    owner: str
    made: float
    masked: tuple[str, ...]
    checkpoints: tuple[str, ...]
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


def parse(data: bytes) -> Manifest:
    """A manifest in which every name is harmless. Raises `BundleError`."""
    try:
        # msgspec reads no half surrogates, which stand for bytes of a name that are no UTF-8.
        found = msgspec.convert(json.loads(data), Manifest)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"its {NAME} can't be read: {error}") from error
    if found.version > VERSION:
        raise BundleError(f"it was made by a newer detslurm (version {found.version})")
    if missing := {CONFIG, FACTS} - found.files.keys():
        raise BundleError(f"it lacks {', '.join(sorted(missing))}")
    for uuid in found.checkpoints:
        if not UUID.fullmatch(uuid):
            raise BundleError(f"{uuid[:80]!r} is no checkpoint")
    for name in (*found.files, *found.directories):
        _check_name(name, found.checkpoints)
    for name, file in found.files.items():
        if file.size < 0:
            raise BundleError(f"{name[:200]!r} has no size")
    _check_tree(found.files, found.directories)
    return found


def _check_name(name: str, checkpoints: tuple[str, ...]) -> None:
    parts = name.split("/")
    whole = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    top = parts[0]
    known = (
        name in (CONFIG, FACTS)
        or (top == "code" and len(parts) > 1)
        or (top == "checkpoints" and len(parts) > 2 and parts[1] in checkpoints)
        or bool(_EVENT.fullmatch(name))
        or bool((found := _TRIAL.fullmatch(name)) and RUN_FILE.fullmatch(found[2]))
    )
    if not (whole and known and len(name) < 4000 and len(parts) <= _DEEPEST):
        raise BundleError(f"{name[:200]!r} is no name of a file in a bundle")


def _check_tree(files: Mapping[str, File], directories: tuple[str, ...]) -> None:
    """No file lies below another file."""
    for name in (*files, *directories):
        parts = name.split("/")
        for depth in range(1, len(parts)):
            if "/".join(parts[:depth]) in files:
                raise BundleError(f"{name[:200]!r} lies below a file")
    if both := files.keys() & set(directories):
        raise BundleError(f"{sorted(both)[0][:200]!r} is a file and a directory")
