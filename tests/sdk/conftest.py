"""Fixtures of the SDK's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.scenes import Scene
from tests.store import clients


@pytest.fixture
def scene(tmp_path: Path, client: str) -> Iterator[Scene]:
    """An empty store with an empty queue."""
    with clients.nodes(tmp_path, client):
        yield Scene(tmp_path / "store")
