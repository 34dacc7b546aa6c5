"""Faults while a checkpoint is saved: what is sealed stays, and faults that pass cost time."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm import core
from detslurm.core import CheckpointContext, DistributedContext
from detslurm.core._checkpoint_records import CheckpointRecords
from detslurm.core._retries import retrying
from detslurm.storage import SharedFS
from detslurm.store import fold_trial, retry

from .jobs import Job
from .ranks import on_ranks
from .test_sharded import STEP, Notes


def save_failing(base: Path, fault: BaseException, patch: pytest.MonkeyPatch, shard: bool) -> Notes:
    """Save a checkpoint while no directory of checkpoints can be brought to the disk."""
    notes, real = Notes(), os.fsync

    def fsync(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink() == base:
            raise fault
        real(handle)

    def save(dist: DistributedContext) -> None:
        recorder: Any = notes
        context = CheckpointContext(
            dist, SharedFS(base), CheckpointRecords(recorder, needs_steps=True)
        )
        with context.store_path(STEP, shard=shard) as (path, _):
            (path / "weights").write_text("w")

    base.mkdir()
    patch.setattr(os, "fsync", fsync)
    [raised] = on_ranks(1, save)
    if raised is not None:
        raise raised
    return notes


@pytest.mark.parametrize("shard", [False, True])
def test_a_sealed_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: bool
) -> None:
    """Its new name can't be brought to the disk: only a power cut could take that."""
    base = tmp_path / "checkpoints"
    notes = save_failing(base, OSError(errno.EIO, "no sync"), monkeypatch, shard)
    [record] = [one for one in notes.records if one["t"] == "checkpoint"]
    assert (base / record["uuid"] / "weights").read_text() == "w"


@pytest.mark.parametrize("shard", [False, True])
def test_a_checkpoint_stays_that_is_sealed_when_the_process_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: bool
) -> None:
    """What comes between the sealing and the record removes nothing."""
    base = tmp_path / "checkpoints"
    with pytest.raises(RuntimeError, match="interrupted"):
        save_failing(base, RuntimeError("interrupted"), monkeypatch, shard)
    [found] = base.iterdir()
    assert (found / "weights").read_text() == "w"


def test_sealing_again_changes_nothing(tmp_path: Path) -> None:
    """A call that has done its work may be reported as failed, and is repeated."""
    store = SharedFS(tmp_path)
    store.begin("one")
    assert store.seal("one", STEP) == store.seal("one", STEP)
    assert store.metadata("one") == STEP
    with pytest.raises(FileNotFoundError):
        store.seal("never-begun", STEP)


def test_an_upload_that_is_repeated_overwrites_what_it_left(tmp_path: Path) -> None:
    """Protected files and links, which a plain copy can't overwrite."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "protected").write_text("p")
    (source / "protected").chmod(0o444)
    (source / "nowhere").symlink_to("gone")
    store = SharedFS(tmp_path / "checkpoints")
    store.begin("one")
    names = ["protected", "nowhere"]
    assert store.put("one", source, names) == store.put("one", source, names)


def closed_for(seconds: float, base: Path, patch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Let nothing below a directory be made or found for a while; returns how long was waited."""
    clock = [0.0]

    def sleep(pause: float) -> None:
        clock[0] += pause

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if clock[0] < seconds and str(path).startswith(str(base)):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *args, **kwargs)

        return call

    patch.setattr(retry, "time", SimpleNamespace(sleep=sleep))
    for name in ("mkdir", "open", "rename", "stat", "lstat", "listdir", "scandir"):
        patch.setattr(os, name, wrap(getattr(os, name)))
    return lambda: clock[0]


def test_a_directory_that_is_closed_for_a_minute_costs_no_run(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next checkpoint waits until the directory is open again."""
    with core.init() as context:
        waited = closed_for(60, job.checkpoints, monkeypatch)
        with context.checkpoint.store_path(STEP) as (path, uuid):
            (path / "weights").write_text("w")
    assert 60 <= waited() <= 80
    assert [one.uuid for one in fold_trial(job.trial).checkpoints] == [uuid]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOENT])
def test_what_does_not_pass_is_raised_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Room does not come in minutes, and a file that is not there does not come at all."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    monkeypatch.setattr(os, "mkdir", fails)
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(OSError, match=os.strerror(code)):
        retrying(SharedFS(tmp_path)).begin("one")
