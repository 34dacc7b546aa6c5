"""Horovod for the tests: built from source, in minutes, while those that don't need it run."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "horovod.sh"
PATIENCE = 1200.0
NO_TOOLS = 3


class Build:
    """`scripts/horovod.sh`, which leaves all others the first turn."""

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop()
        self._process = subprocess.Popen(
            ["nice", "-n19", SCRIPT],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Wait for its end; skips or fails the test where Horovod is not there then."""
        status = self._process.wait(PATIENCE)
        self._output.seek(0)
        if status == NO_TOOLS:
            pytest.skip("Horovod: g++, make, cmake or Python.h is not installed")
        assert status == 0, f"Horovod's build failed:\n{self._output.read()}"

    def stop(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
        self._output.close()


_BUILD = pytest.StashKey[Build]()


@pytest.fixture(scope="session")
def horovod(pytestconfig: pytest.Config) -> None:
    """Horovod is installed, for this torch and this MPI."""
    pytestconfig.stash[_BUILD].wait()


def put_last(items: list[pytest.Item]) -> None:
    """Let the tests that need Horovod come last, with the time that its build may take.

    They are slow ones, too: the inner loop does not wait for a build.
    """
    needing = _that_need_it(items)
    for item in needing:
        item.add_marker(pytest.mark.timeout(PATIENCE + 300))
        item.add_marker("slow")
        item.add_marker("nightly")
    items[:] = [item for item in items if item not in needing] + needing


def _that_need_it(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if "horovod" in getattr(item, "fixturenames", ())]


def build_horovod(session: pytest.Session) -> None:
    """Start the build, if a test needs it."""
    if _that_need_it(session.items) and not session.config.option.collectonly:
        session.config.stash[_BUILD] = Build()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no build behind."""
    if _BUILD in config.stash:
        config.stash[_BUILD].stop()
