"""Fixtures of the SDK's tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from detslurm._base import module_cache
from tests.sdk.scenes import Scene
from tests.store import clients


@pytest.fixture(scope="session", autouse=True)
def one_module_cache() -> Iterator[None]:
    """What submissions write beside each new store is the same for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module_cache, "_made_apart", cache(module_cache._made_apart))
        yield


@pytest.fixture
def scene(tmp_path: Path, client: str) -> Iterator[Scene]:
    """An empty store with an empty queue."""
    with clients.nodes(tmp_path, client):
        yield Scene(tmp_path / "store")
