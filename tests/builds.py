"""Builds that take minutes run beside other tests, and their results stay in the user's cache."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
PATIENCE = 1200.0
NO_TOOLS = 3

COMMANDS = {
    "horovod": ("horovod.sh",),
    "image": ("image.sh", "bookworm"),
    "newer_image": ("image.sh", "trixie"),
}
"""The script in `scripts` behind each fixture; status 3: it misses tools, or may not."""


class Build:
    """A script, which leaves all others the first turn."""

    def __init__(self, script: str, *args: str) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in stop()
        self._process = subprocess.Popen(
            ["nice", "-n19", SCRIPTS / script, *args],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait(self) -> str:
        """Wait for its end; skip or fail the test without a result. Return the last line."""
        status = self._process.wait(PATIENCE)
        self._output.seek(0)
        output = self._output.read()
        if status == NO_TOOLS:
            pytest.skip(output.splitlines()[-1])
        assert status == 0, f"the build failed:\n{output}"
        return output.strip().rpartition("\n")[2]

    def stop(self) -> None:
        """End it, if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()
        self._output.close()


_BUILDS = pytest.StashKey[dict[str, Build]]()


def built(config: pytest.Config, fixture: str) -> str:
    """Wait for the build behind a fixture; return the last line that its script printed."""
    return config.stash[_BUILDS][fixture].wait()


def that_need(fixture: str, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests that use a fixture."""
    return [item for item in items if fixture in getattr(item, "fixturenames", ())]


def start_builds(session: pytest.Session) -> None:
    """Start each build that a test needs."""
    if not session.config.option.collectonly:
        session.config.stash[_BUILDS] = {
            fixture: Build(*command)
            for fixture, command in COMMANDS.items()
            if that_need(fixture, session.items)
        }


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no build behind."""
    for build in config.stash.get(_BUILDS, {}).values():
        build.stop()
