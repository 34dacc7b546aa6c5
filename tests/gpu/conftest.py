"""Tests of what a GPU alone can show, for `make test-gpu`; elsewhere each is skipped, and said.

With DETSLURM_TEST_DEVICE=cpu those whose code is the same on a CPU run there: for whoever writes
them without a GPU at hand.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.table import Row, format_table
from tests.pytorch.conftest import managed, one_thread, root
from tests.temporary import temporary_folder

__all__ = ["managed", "one_thread", "root", "temporary_folder"]

HERE = Path(__file__).parent
ON_CPU = os.environ.get("DETSLURM_TEST_DEVICE") == "cpu"
NONE_HERE = "GPU: torch sees no CUDA device; `make test-gpu` runs these where there is one"

# Without it cuBLAS doesn't compute the same twice; it is read when a process first uses it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# DeepSpeed 0.19.8 can't read a list with 9.0a in it, which images set; it builds for the GPU here.
os.environ.pop("TORCH_CUDA_ARCH_LIST", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a GPU, and one process uses it at a time."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("gpu")
            item.add_marker(pytest.mark.xdist_group("gpu"))


@pytest.fixture(scope="session")
def needs_gpu() -> None:
    """For what takes long to make ready: it is made before `device` can skip a test."""
    if not (ON_CPU or torch.cuda.is_available()):
        pytest.skip(NONE_HERE)


@pytest.fixture(autouse=True)
def device(needs_gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device that a trial gets; whatever can be the same twice on it, is."""
    if ON_CPU:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch.use_deterministic_algorithms(True)
    yield torch.device("cpu") if ON_CPU else torch.device("cuda", torch.cuda.current_device())
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def gpu(device: torch.device) -> torch.device:
    """The same, for tests that say nothing about a CPU."""
    if device.type != "cuda":
        pytest.skip("GPU: DETSLURM_TEST_DEVICE=cpu leaves out what a CPU has nothing like")
    return device


_ROWS = pytest.StashKey[dict[str, Row]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep each test's row of the table."""
    report = yield
    if HERE in item.path.parents:
        rows = item.config.stash.setdefault(_ROWS, {})
        where = dict(item.user_properties).get("device") or _name()
        row = rows.get(item.nodeid) or Row(item.nodeid.partition("gpu/")[2], "", 0.0, str(where))
        rows[item.nodeid] = row.after(report.outcome, report.duration, str(where))
    return report


def _name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One table at the end, where anything ran."""
    rows = list(terminalreporter.config.stash.get(_ROWS, {}).values())
    if any(row.result != "skipped" for row in rows):
        terminalreporter.section("GPU", "-")
        for line in format_table(rows):
            terminalreporter.write_line(line)
