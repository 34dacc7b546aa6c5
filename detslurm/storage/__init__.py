"""Where checkpoints are kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from detslurm.storage.files import copy_selected, list_resources
from detslurm.storage.interface import METADATA, Resources, Selector, Storage
from detslurm.storage.objects import ObjectStore
from detslurm.storage.shared_fs import SharedFS

__all__ = [
    "METADATA",
    "ObjectStore",
    "Resources",
    "Selector",
    "SharedFS",
    "Storage",
    "copy_selected",
    "from_config",
    "from_uri",
    "list_resources",
]


def from_config(section: Mapping[str, Any]) -> Storage:
    """The storage that a `checkpoint_storage` section describes.

    Nothing is opened yet. Raises `ValueError` for a type that does not exist.
    """
    kind = section.get("type")
    if kind == "shared_fs":
        base = Path(os.path.expandvars(str(section["host_path"])))
        if section.get("storage_path"):
            base = base / section["storage_path"]
        return SharedFS(base)
    if kind == "directory":
        return SharedFS(Path(section["container_path"]))
    if kind in _CLOUDS:
        return _CLOUDS[kind](section)
    raise ValueError(f"checkpoint_storage.type {kind!r} does not exist; use shared_fs, s3, ...")


def from_uri(text: str) -> Storage:
    """The storage that a path, `file://`, `s3://bucket/prefix` or `gs://bucket/prefix` names.

    Raises `ValueError` for anything else.
    """
    parts = urlsplit(text)
    if not parts.scheme:
        return SharedFS(Path(text).expanduser().absolute())
    if parts.query or parts.fragment or (parts.scheme == "file") == bool(parts.netloc):
        raise ValueError(
            f"checkpoint_storage {text!r} is malformed: file:///path, s3://bucket/prefix "
            "and gs://bucket/prefix are fine, with nothing behind"
        )
    if parts.scheme == "file":
        return SharedFS(Path(parts.path))
    if parts.scheme not in ("s3", "gs"):
        raise ValueError(f"checkpoint_storage {text!r} must be a path, file://, s3:// or gs://")
    kind = "s3" if parts.scheme == "s3" else "gcs"
    return _CLOUDS[kind]({"bucket": parts.netloc, "prefix": parts.path})


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
