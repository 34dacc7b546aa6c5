"""Where the store is that commands and clients use by default, and who decided that."""

from __future__ import annotations

import os
from pathlib import Path

from detslurm._base import contract


def default_root() -> Path:
    """Return the directory of the store that commands and clients use by default. That is
    DETSLURM_ROOT, else in a job the store of its experiment, else `root` of the site profile, else
    `~/detslurm`, or `~/detslurm-store` where that is a checkout of this project."""
    named = os.environ.get(contract.ROOT)
    if named and not named.startswith("~") and "$" not in named:
        return Path(named).absolute()
    if not named and (experiment := os.environ.get(contract.EXPERIMENT_DIR)):
        return Path(experiment).parent.parent
    from detslurm.config import store_root

    return store_root()


DEFAULT_ORIGIN = "the default"


def root_origin() -> str:
    """Return who decided where `default_root` is, as a phrase for messages."""
    if os.environ.get(contract.ROOT):
        return "by DETSLURM_ROOT"
    if os.environ.get(contract.EXPERIMENT_DIR):
        return "that of this job"
    from detslurm.config import load_site

    site = load_site()
    return f"by root in {site.source}" if site.root else DEFAULT_ORIGIN
