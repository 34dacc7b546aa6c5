"""Fixtures that several tests of jobs share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from detslurm.exec.signals import SignalInbox
from tests.sdk.scenes import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty store with an empty queue."""
    return Scene(tmp_path / "store")


@pytest.fixture
def inbox() -> Iterator[SignalInbox]:
    """One that no signal is for."""
    before = signal.set_wakeup_fd(-1)
    yield SignalInbox([])
    signal.set_wakeup_fd(before)
