"""A store, a user's file of definitions, and a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.notices.receiver import Receiver, receiver
from tests.sdk.scenes import Scene

Define = Callable[[str], Path]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A store that commands find, without a site profile."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("DETSLURM_SITE", "")
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return Scene(tmp_path / "store")


@pytest.fixture
def define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Define:
    """Writes the user's file of definitions."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(text: str) -> Path:
        path = tmp_path / "config" / "detslurm" / "notices.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as seen:
        yield seen
