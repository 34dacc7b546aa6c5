"""Where code under test keeps temporary files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own: much is removed when the process ends, which here is that of the suite."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
