"""Where checkpoints are kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detslurm.storage.files import copy_selected, list_resources
from detslurm.storage.interface import METADATA, Resources, Selector, Storage
from detslurm.storage.shared_fs import SharedFS

__all__ = [
    "METADATA",
    "Resources",
    "Selector",
    "SharedFS",
    "Storage",
    "copy_selected",
    "from_config",
    "list_resources",
]


def from_config(section: Mapping[str, Any]) -> Storage:
    """The storage that a `checkpoint_storage` section describes.

    Raises `ValueError` for a type that this version can't store to.
    """
    kind = section.get("type")
    if kind == "shared_fs":
        base = Path(os.path.expandvars(str(section["host_path"])))
        if section.get("storage_path"):
            base = base / section["storage_path"]
        return SharedFS(base)
    if kind == "directory":
        return SharedFS(Path(section["container_path"]))
    raise ValueError(f"checkpoint_storage.type {kind!r} is not supported yet; use shared_fs")
