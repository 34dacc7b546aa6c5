"""Where checkpoints are kept."""

from __future__ import annotations

from detslurm.storage.files import list_resources
from detslurm.storage.interface import METADATA, Digests, Resources, Selector, Storage
from detslurm.storage.locations import Storages, from_config, location, section_of
from detslurm.storage.objects import ObjectStore
from detslurm.storage.shared_fs import SharedFS

__all__ = [
    "METADATA",
    "Digests",
    "ObjectStore",
    "Resources",
    "Selector",
    "SharedFS",
    "Storage",
    "Storages",
    "from_config",
    "list_resources",
    "location",
    "section_of",
]
