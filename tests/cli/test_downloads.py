"""`detslurm checkpoint download`, and what else copies checkpoints."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from detslurm.sdk.submission.context import collect
from tests.cli.conftest import Detslurm
from tests.cli.test_checkpoints import BAD, GOOD, saved, uuids
from tests.cluster.namespaces import may_unshare
from tests.sdk.scenes import Scene
from tests.store.faults import failing

__all__ = ["saved"]


def test_what_is_damaged_is_not_downloaded(
    saved: Scene, detslurm: Detslurm, tmp_path: Path
) -> None:
    """It would look like a checkpoint: what it lacks is said, and nothing is left behind."""
    (saved.root / "checkpoints" / GOOD / "weights").unlink()
    for words in (["c", "download", GOOD, "-o", tmp_path / "out"], ["e", "download", 1]):
        result = detslurm(*words, *(["-o", tmp_path / "out"] if words[0] == "e" else []))
        assert result.status == 1
        assert f"checkpoint {GOOD} is damaged, missing: weights" in result.err
    assert not list(tmp_path.glob("out/*"))


def test_the_best_of_an_experiment_are_downloaded(
    saved: Scene, detslurm: Detslurm, tmp_path: Path
) -> None:
    """By the searcher's metric or another one; with the way to load them on stderr."""
    out = tmp_path / "out"
    result = detslurm("e", "download", 1, "-o", out)
    assert result.out == f"{out / GOOD}\n"
    assert (out / GOOD / "nested" / "state").read_text() == "12"
    assert "as the code saved them" in result.err
    assert detslurm("e", "download", 1, "--top-n", 5, "-o", out, "-q", "--json").data == [
        {"uuid": GOOD, "path": str(out / GOOD)}, {"uuid": BAD, "path": str(out / BAD)},
    ]  # fmt: skip
    by = ["--sort-by", "accuracy", "--smaller-is-better", "true"]
    assert uuids(*detslurm("e", "download", 1, *by, "-o", out, "--json").data) == [BAD]
    assert uuids(*detslurm("t", "download", 1, "--best", *by, "-o", out / BAD, "--json").data) == [
        BAD
    ]
    for words in (["--sort-by", "loss"], ["--best", "--top-n", 2], ["--top-n", 0]):
        assert detslurm("e", "download", 1, *words).status == 2
    by[1] = "nothing"
    assert "no checkpoint with a validation of nothing" in detslurm("e", "download", 1, *by).err
    assert uuids(*detslurm("e", "lc", 1, "--best", 1, "--json").data) == [GOOD]


def test_a_store_without_hard_links_can_be_copied_from(
    saved: Scene, detslurm: Detslurm, tmp_path: Path
) -> None:
    """As a copy of one on a USB disk: nothing can be held there, and nobody deletes."""
    with failing("link", errno.EPERM, times=99):
        done = detslurm("c", "download", GOOD, "-o", tmp_path / "out")
    assert done.status == 0, done.err
    assert (tmp_path / "out" / "weights").read_text() == "12345"


def test_a_download_is_no_code(
    saved: Scene, detslurm: Detslurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next submission of the directory that it was copied to leaves it out."""
    (project := tmp_path / "project").mkdir()
    monkeypatch.chdir(project)
    assert detslurm("e", "download", 1).out == f"checkpoints/{GOOD}\n"
    found = collect(project)
    assert found.files == () and "a downloaded checkpoint" in found.notes[0]


def _interrupt(done: int, whole: int) -> None:
    if done > whole / 2:
        raise KeyboardInterrupt


def _interrupted_filling() -> AbstractContextManager[object]:
    """While entries of the copy get their places."""
    moved: list[Path] = []

    def move(path: Path, place: Path) -> None:
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(path.rename(place))

    return mock.patch("detslurm.sdk.checkpoints.download.rename", move)


@pytest.mark.parametrize("how", ["here", "a link", "a mount"])
def test_a_download_into_an_empty_directory_that_stays(
    saved: Scene, detslurm: Detslurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The shell's own, one behind a link, a disk: it is filled, nothing is left beside it or in
    it, and what broke off is continued."""
    (real := tmp_path / "out" / "real").mkdir(parents=True)
    target = {"here": Path(), "a link": tmp_path / "link", "a mount": real}[how]
    if how == "here":
        monkeypatch.chdir(real)
    elif how == "a link":
        target.symlink_to(real)
    elif may_unshare():
        subprocess.run(["mount", "-t", "tmpfs", "none", real], check=True)
    else:
        pytest.skip("only root can mount a disk")
    try:
        before = real.stat().st_dev
        with pytest.raises(KeyboardInterrupt):
            saved.client.checkpoint(GOOD).download(target, progress=_interrupt)
        assert any(real.rglob("*.partial/nested/state")) == (how != "a link")
        if how != "a link":  # and once more while it is filled
            with pytest.raises(KeyboardInterrupt), _interrupted_filling():
                saved.client.checkpoint(GOOD).download(target)
            assert (real / "metadata.json").exists()
        for _ in range(2):  # the second time it is there
            done = detslurm("c", "download", GOOD, "-o", target)
            assert (done.status, done.out) == (0, f"{target}\n"), done.err
        assert {path.name for path in target.iterdir()} == {
            "weights", "optimizer", "nested", "metadata.json"
        }  # fmt: skip
        assert (real / "nested" / "state").read_text() == "12" and real.stat().st_dev == before
        assert list(real.parent.iterdir()) == [real] and target.is_symlink() == (how == "a link")
        other = detslurm("c", "download", BAD, "-o", target)
        assert other.status == 1 and "exists already, and is no copy" in other.err
    finally:
        if how == "a mount":
            subprocess.run(["umount", "--lazy", real], check=True)


def test_code_is_added_whole(saved: Scene, detslurm: Detslurm, tmp_path: Path) -> None:
    """Interrupted at its second file: the same command again has all of it, and nothing else."""
    (saved.root / "checkpoints" / GOOD / "load_data.json").write_text("{}")
    code = saved.store.experiment(1).code
    for name in ("a.py", "b.py"):
        (code / name).write_text("x = 1")
    target, copied = tmp_path / "out", iter([shutil.copyfile])

    def copy(*args: Any, **kwargs: Any) -> Any:
        for real in copied:
            return real(*args, **kwargs)
        raise KeyboardInterrupt

    with mock.patch("shutil.copyfile", copy), pytest.raises(KeyboardInterrupt):
        saved.client.checkpoint(GOOD).download(target)
    assert detslurm("c", "download", GOOD, "-o", target).status == 0
    assert {path.name for path in (target / "code").iterdir()} == {"a.py", "b.py", "train.py"}
    assert not list(target.glob(".*"))


def test_processes_of_two_nodes_may_have_one_id(saved: Scene, tmp_path: Path) -> None:
    """Both write the metadata of a checkpoint to one file: it is that of one of them."""
    real, one = Path.rename, tmp_path / "metadata.json"
    checkpoint = saved.client.checkpoint(GOOD)
    late = iter([checkpoint])

    def rename(self: Path, target: Path) -> Path:
        for other in late:
            other.write_metadata_file(one)
        return real(self, target)

    with mock.patch.object(Path, "rename", rename):
        checkpoint.write_metadata_file(one)
    assert json.loads(one.read_text()) == checkpoint.metadata
    assert list(tmp_path.glob("*.json")) == [one] and not list(tmp_path.glob(".*"))


def test_a_download_takes_the_place_of_nothing(
    saved: Scene, detslurm: Detslurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came to a directory while it was copied stays; without it the same command goes on."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(KeyboardInterrupt):
        saved.client.checkpoint(GOOD).download(".", progress=_interrupt)
    (here / "weights").write_text("54321")  # of the same size
    refused = detslurm("c", "download", GOOD, "-o", ".")
    assert refused.status == 1 and f"{here / 'weights'} is in the way" in refused.err
    assert (here / "weights").read_text() == "54321" and not (here / "optimizer").exists()
    (here / "weights").unlink()
    monkeypatch.chdir(tmp_path)
    assert detslurm("c", "download", GOOD, "-o", here).status == 0
    assert (here / "weights").read_text() == "12345"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for others")
@pytest.mark.parametrize("planted", ["directory", "link"])
def test_a_copy_does_not_grow_in_what_others_made(
    saved: Scene, detslurm: Detslurm, tmp_path: Path, planted: str
) -> None:
    """In a directory of a group its name can be foreseen: nothing is written there or taken."""
    (tmp_path / "mine").mkdir()
    stage = tmp_path / f".copy.{GOOD[:8]}.partial"
    if planted == "link":
        stage.symlink_to(tmp_path / "mine")
    else:
        stage.mkdir()
        os.chown(stage, 12345, -1)
    done = detslurm("c", "download", GOOD, "-o", tmp_path / "copy")
    assert done.status == 1 and f"{stage}, where the copy grows, was made by" in done.err
    assert not (tmp_path / "copy").exists() and not list((tmp_path / "mine").iterdir())
