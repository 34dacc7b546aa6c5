"""Fixtures of the SDK's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.scenes import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty store with an empty queue."""
    return Scene(tmp_path / "store")
