"""Fixtures of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.pytorch.managed import Managed


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of what is run by hand in this test; the working directory is empty."""
    root = tmp_path / "store"
    monkeypatch.setenv("DETSLURM_ROOT", str(root))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return root


@pytest.fixture
def managed(root: Path, monkeypatch: pytest.MonkeyPatch) -> Managed:
    """A trial in a job; its search wants 20 batches and minimises `loss`."""
    return Managed(root, monkeypatch)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are faster on one thread, and other tests run beside this one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
