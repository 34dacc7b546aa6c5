"""Where code under test keeps temporary files."""

from __future__ import annotations

import tempfile

import pytest


@pytest.fixture(autouse=True)
def temporary_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test's own: much is removed when the process ends, which here is that of the suite.

    Its name is short, for the sockets of data loaders' workers: where a path is longer than 107
    bytes they send nothing, and who waits for them waits forever.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("t")))
