"""Hooks in each Python of a run: on PYTHONPATH, this directory's `sitecustomize` begins them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from detslurm._base import contract

DIRECTORY = Path(__file__).parent


def with_start_hook(env: Mapping[str, str], name: str) -> dict[str, str]:
    """The same environment, in which each Python begins `_detslurm_NAME.py` of this directory."""
    path = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    if str(DIRECTORY) not in path:
        path.insert(0, str(DIRECTORY))
    names = ",".join(filter(None, (env.get(contract.START_HOOKS), name)))
    return {**env, "PYTHONPATH": os.pathsep.join(path), contract.START_HOOKS: names}
