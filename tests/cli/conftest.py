"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from detslurm.cli import main
from tests.envelope import unwrap
from tests.sdk.conftest import one_module_cache as one_module_cache
from tests.sdk.scenes import Scene


@dataclass
class CommandResult:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The result as JSON: stdout must be nothing else."""
        return unwrap(self.out)


Detslurm = Callable[..., CommandResult]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """An empty store which the commands find, and the queue behind it."""
    scene = Scene(tmp_path / "store")
    monkeypatch.setenv("DETSLURM_ROOT", str(scene.root))
    monkeypatch.setenv("DETSLURM_SITE", "")
    monkeypatch.setattr(
        "detslurm.slurm.detect.detect_cluster", lambda name="auto", root=None: scene.queue
    )
    return scene


@pytest.fixture
def detslurm(capsys: pytest.CaptureFixture[str]) -> Detslurm:
    """`detslurm ARGS` in this process."""

    def run(*args: object) -> CommandResult:
        capsys.readouterr()
        status = main([str(arg) for arg in args])
        result = capsys.readouterr()
        return CommandResult(status, result.out, result.err)

    return run
