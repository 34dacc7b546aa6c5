"""Where checkpoints are kept."""

from __future__ import annotations

from detslurm.storage.files import copy_selected, list_resources
from detslurm.storage.interface import METADATA, Resources, Selector, Storage
from detslurm.storage.locations import Storages, from_config, location, section_of
from detslurm.storage.objects import ObjectStore
from detslurm.storage.shared_fs import SharedFS

__all__ = [
    "METADATA",
    "ObjectStore",
    "Resources",
    "Selector",
    "SharedFS",
    "Storage",
    "Storages",
    "copy_selected",
    "from_config",
    "list_resources",
    "location",
    "section_of",
]
