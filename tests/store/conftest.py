"""Where the suite's stores live, and stores ready to use."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm.store import Store
from tests.store import clients

ELSEWHERE = "DETSLURM_TEST_STORE"
"""Environment variable: run the suite in a new directory there instead of in /tmp."""


@pytest.fixture
def place(tmp_path: Path, client: str) -> Iterator[Path]:
    """An empty directory on the file system under test."""
    elsewhere = os.environ.get(ELSEWHERE)
    if not elsewhere:
        with clients.nodes(tmp_path, client):
            yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="conformance-", dir=elsewhere))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def store(place: Path) -> Store:
    """An empty store."""
    return Store.open(place / "store")
