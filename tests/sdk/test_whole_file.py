"""Files that users have named: an older one stays until the new one is whole."""

from __future__ import annotations

import errno
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.whole_file import whole_file
from tests.sdk.scenes import Scene


@pytest.fixture
def archive(scene: Scene, tmp_path: Path) -> Path:
    """The code of experiment 1, downloaded to a directory of its own."""
    scene.experiment()
    return scene.client.experiment(1).download_code(tmp_path / "out")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_download_of_code_that_breaks_off_leaves_the_former_one(
    scene: Scene, archive: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """As it was, with nothing beside it; a full disk is said of the file."""

    def broken(*args: Any, **options: Any) -> None:
        raise error

    before = archive.read_bytes()
    monkeypatch.setattr(tarfile.TarFile, "add", broken)
    with pytest.raises(type(error)) as raised:
        scene.client.experiment(1).download_code(archive.parent)
    assert getattr(raised.value, "filename", str(archive)) == str(archive)
    assert archive.read_bytes() == before
    assert list(archive.parent.iterdir()) == [archive]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_a_download_of_code_follows_no_link_of_another_user(scene: Scene, archive: Path) -> None:
    """In a directory that many write to it may lead to any file of the user's."""
    precious = archive.rename(archive.with_name("precious"))
    before = precious.read_bytes()
    archive.symlink_to(precious)
    os.chown(archive, 65534, -1, follow_symlinks=False)
    with pytest.raises(LifecycleError, match="another user's link"):
        scene.client.experiment(1).download_code(archive.parent)
    assert precious.read_bytes() == before


def test_an_older_file_keeps_its_mode(scene: Scene, archive: Path) -> None:
    """Who has closed it to others meant what it holds."""
    archive.chmod(0o640)
    assert scene.client.experiment(1).download_code(archive.parent) == archive
    assert archive.stat().st_mode & 0o777 == 0o640


def test_a_file_that_is_read_names_itself(tmp_path: Path) -> None:
    """Its error is not one of the file that was to be written."""
    with pytest.raises(FileNotFoundError) as raised, whole_file(tmp_path / "new"):
        (tmp_path / "missing").read_bytes()
    assert raised.value.filename == str(tmp_path / "missing")
    assert not list(tmp_path.iterdir())
