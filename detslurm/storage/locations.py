"""The storage that a configuration, an address or a record names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from detslurm.storage.interface import Storage
from detslurm.storage.objects import ObjectStore
from detslurm.storage.shared_fs import SharedFS

Section = Mapping[str, Any]
"""A `checkpoint_storage` section, or its part that names the storage's place."""

_NEEDED: Final = {
    "shared_fs": "host_path",
    "directory": "container_path",
    "s3": "bucket",
    "gcs": "bucket",
    "azure": "container",
}
_PLACE: Final = ("type", "bucket", "prefix", "endpoint_url", "container", "account_url")


def from_config(section: Mapping[str, Any]) -> Storage:
    """The storage that a `checkpoint_storage` section describes.

    Nothing is opened yet. Raises `ValueError` for a type that does not exist, or without the place.
    """
    kind = section.get("type")
    if kind in _NEEDED and not section.get(_NEEDED[kind]):
        raise ValueError(f"checkpoint_storage of type {kind} needs {_NEEDED[kind]}")
    if kind == "shared_fs":
        # A submission replaces the variables that it knows; older records have them still.
        base = Path(os.path.expandvars(str(section["host_path"])))
        if section.get("storage_path"):
            base = base / section["storage_path"]
        return SharedFS(base)
    if kind == "directory":
        return SharedFS(Path(section["container_path"]))
    if kind in _CLOUDS:
        return _CLOUDS[kind](section)
    raise ValueError(f"checkpoint_storage.type {kind!r} does not exist; use shared_fs, s3, ...")


def section_of(text: str) -> dict[str, Any]:
    """The section for what a path, `file://`, `s3://bucket/prefix` or `gs://bucket/prefix` names.

    Raises `ValueError` for anything else.
    """
    parts = urlsplit(text)
    if not parts.scheme:
        return _directory(Path(text).expanduser().absolute())
    if parts.query or parts.fragment or (parts.scheme == "file") == bool(parts.netloc):
        raise ValueError(
            f"checkpoint_storage {text!r} is malformed: file:///path, s3://bucket/prefix "
            "and gs://bucket/prefix are fine, with nothing behind"
        )
    if parts.scheme == "file":
        return _directory(Path(parts.path))
    if parts.scheme not in ("s3", "gs"):
        raise ValueError(f"checkpoint_storage {text!r} must be a path, file://, s3:// or gs://")
    kind = "s3" if parts.scheme == "s3" else "gcs"
    return {"type": kind, "bucket": parts.netloc, "prefix": parts.path}


def location(section: Section) -> dict[str, Any]:
    """The part of a section that names the storage's place, for records: it holds no secrets."""
    found = from_config(section)
    if isinstance(found, SharedFS):
        return _directory(found.base.absolute())
    return {key: _without_secrets(str(section[key])) for key in _PLACE if section.get(key)}


def _directory(path: Path) -> dict[str, Any]:
    return {"type": "directory", "container_path": str(path)}


def _without_secrets(text: str) -> str:
    if "://" not in text:
        return text
    parts = urlsplit(text)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class Stored(Protocol):
    """A checkpoint, and its place by its record; None for the configured storage."""

    @property
    def uuid(self) -> str: ...

    @property
    def storage(self) -> Section | None: ...


class Storages:
    """Where the checkpoints of one experiment are: code may name other storages than the
    configured one, and the records of its checkpoints have them. `home` is the store's path.
    """

    def __init__(self, configured: Section, home: Path) -> None:
        self._configured, self._home = configured, home
        self._known: dict[str, Storage] = {}

    def of(self, section: Section | None) -> Storage:
        """The storage that a record names, or the configured storage. Raises as `from_config`."""
        key = repr(section)
        if key not in self._known:
            self._known[key] = from_config(self._configured if section is None else section)
        return self._known[key]

    def discard(self, checkpoint: Stored) -> None:
        """Remove all files of a checkpoint."""
        self.of(checkpoint.storage).discard(checkpoint.uuid)

    def reachable(self, section: Section | None) -> bool:
        """Whether a missing file is really missing, and not the whole storage."""
        return self.of(section).is_visible(self._home)

    def unreachable(self, checkpoints: Iterable[Stored]) -> dict[str, str]:
        """The places that can't be seen from here, by the ids of the checkpoints in them."""
        found, seen = dict[str, str](), dict[str, bool]()
        for one in checkpoints:
            where = self.of(one.storage).where
            if where not in seen:
                seen[where] = self.reachable(one.storage)
            if not seen[where]:
                found[one.uuid] = where
        return found


def _s3(section: Mapping[str, Any]) -> Storage:
    options = {
        "key": section.get("access_key"),
        "secret": section.get("secret_key"),
        "endpoint_url": section.get("endpoint_url"),
    }
    return ObjectStore("s3", _under_prefix(section["bucket"], section), _given(options))


def _gcs(section: Mapping[str, Any]) -> Storage:
    return ObjectStore("gs", _under_prefix(section["bucket"], section))


def _azure(section: Mapping[str, Any]) -> Storage:
    url = urlsplit(section.get("account_url") or "")
    options = {
        "connection_string": section.get("connection_string"),
        "account_name": (url.hostname or "").partition(".")[0],
        "account_host": url.hostname,
        "credential": section.get("credential"),
    }
    return ObjectStore("abfs", section["container"], _given(options))


_CLOUDS = {"s3": _s3, "gcs": _gcs, "azure": _azure}


def _under_prefix(bucket: str, section: Mapping[str, Any]) -> str:
    prefix = (section.get("prefix") or "").strip("/")
    return f"{bucket}/{prefix}" if prefix else bucket


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value}
