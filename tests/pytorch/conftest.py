"""Fixtures of this folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from detslurm.pytorch.checkpointing import _code
from tests.pytorch.managed import Managed
from tests.temporary import temporary_folder

__all__ = ["temporary_folder"]

Results = list[dict[str, Any]]
REPOSITORY = Path(__file__).parents[2]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


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
def code_of_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """What checkpoints get of the code: not the hundreds of other tests that this process knows."""
    here, below = Path(__file__).parent, _code._modules_below

    def modules(folder: Path) -> Iterator[Path]:
        return below(here if here.is_relative_to(folder) else folder)

    monkeypatch.setattr(_code, "_modules_below", modules)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small tensors are faster on one thread, and other tests run beside this one."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the two ranks of `two` keep their checkpoints."""
    return tmp_path_factory.mktemp("ranks") / "store"


@pytest.fixture(scope="session")
def two(store: Path) -> Results:
    """What each of two ranks returned, of all scenarios."""
    forked = [sys.executable, "-m", "tests.pytorch.forked", "2"]
    return on_ranks(2, forked, "everything", store.parent / "out", DETSLURM_ROOT=str(store))


def on_ranks(
    count: int,
    launcher: list[str],
    scenario: str,
    folder: Path,
    module: str = "tests.pytorch.ranks",
    **environment: str,
) -> Results:
    """What each rank returned of a scenario, by default of `tests.pytorch.scenarios`."""
    folder.mkdir()
    done = subprocess.run(
        [*launcher, "-m", module, scenario, str(folder)],
        cwd=REPOSITORY,
        # The number of threads decides in which order batch norm adds up.
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(count)]
