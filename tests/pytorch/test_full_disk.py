"""Checkpoints on a disk that is full: training says so and goes on, and loses nothing it has."""

from __future__ import annotations

import errno
import resource
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from detslurm import pytorch
from detslurm.pytorch import Batch
from detslurm.pytorch.checkpointing._background import BackgroundSaves
from detslurm.store import Store, fold_trial
from tests.cluster.namespaces import may_unshare
from tests.pytorch.fitting import fit, in_job
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression


@pytest.fixture
def disk(root: Path, managed: Managed) -> Iterator[Path]:
    """The checkpoints' own file system: room for one of them and a bit, most of it taken."""
    if not may_unshare():
        pytest.skip("a full disk: only root can mount a small one, and not in every container")
    managed.experiment.code.mkdir()  # frozen, as in every job: else all loaded modules are copied
    disk = root / "checkpoints"
    disk.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=9m", "small", str(disk)], check=True)
    (disk / "ballast").write_bytes(bytes(8 << 20))
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


class Large(Regression):
    """Its checkpoints take over 2 MB. Before batch `free_at` somebody makes room."""

    background = False
    free_at: int | None = None

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        context.wrap_model(nn.Linear(1000, 500))
        if self.background:
            context.experimental.save_in_background()
        self.uploaded: list[str] = []

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        if batch_idx == self.free_at:
            for _ in range(sum(batches <= batch_idx for batches in PERIOD)):
                assert self.tried.acquire(timeout=60)
            while any(self.disk.glob("*.partial")):  # what could not be written is removed
                threading.Event().wait(0.01)
            (self.disk / "ballast").unlink()
        return super().train_batch(batch, epoch_idx, batch_idx)

    tried: threading.Semaphore
    disk: Path

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        callback = pytorch.PyTorchCallback()
        vars(callback)["on_checkpoint_upload_end"] = self.uploaded.append
        return {"callback": callback}


def saved_on(disk: Path) -> set[str]:
    return {path.name for path in disk.iterdir()} - {"tensorboard"}


PERIOD = [2, 5, 10]


@pytest.mark.parametrize(("background", "free_at"), [(False, 8), (True, 8), (True, 15)])
def test_training_outlives_it(
    managed: Managed,
    disk: Path,
    background: bool,
    free_at: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log says which disk and what becomes of it; the next checkpoint is tried as ever, and
    what could not be saved leaves nothing behind."""
    Large.background, Large.free_at, Large.disk = background, free_at, disk
    Large.tried = threading.Semaphore(0)
    save = torch.save

    def try_to_save(*args: Any) -> None:
        try:
            save(*args)
        finally:
            Large.tried.release()

    monkeypatch.setattr(torch, "save", try_to_save)
    trial = in_job(managed, Large, checkpoint_period=Batch(PERIOD), checkpoint_policy="none")
    assert len(trial.losses) == 20
    failed = [batches for batches in PERIOD if batches <= free_at]
    assert managed.checkpoints() == [*PERIOD[len(failed) :], 20]
    assert [one.uuid for one in managed.view().checkpoints] == trial.uploaded
    assert saved_on(disk) == set(trial.uploaded)
    said = [r.getMessage() for r in caplog.records if "no checkpoint is saved" in r.getMessage()]
    assert len(said) == len(failed)
    assert "training goes on" in said[0]
    assert f"no space left on the file system of {disk}" in said[0]


def test_leaving_without_a_checkpoint_is_an_error(managed: Managed, disk: Path) -> None:
    """At the end nobody may believe that the trial was saved."""
    Large.background, Large.free_at = False, None
    with pytest.raises(OSError, match=f"no space left on the file system of {disk}") as caught:
        in_job(managed, Large, checkpoint_period=Batch(5))
    assert caught.value.errno == errno.ENOSPC
    assert managed.checkpoints() == []
    assert saved_on(disk) == {"ballast"}


def test_nor_is_a_checkpoint_in_the_background_that_failed_before(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch was saved, or so it seemed: it is saved again."""

    class Fails(Regression):
        tries = 0

        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.save_in_background()

        def write(self, checkpoint_dir: str) -> None:
            self.tries += 1
            if self.tries == 1:
                raise OSError(errno.ENOSPC, "no space")

        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            callback = pytorch.PyTorchCallback()
            vars(callback)["on_checkpoint_write_end"] = self.write
            return {"callback": callback}

    check = BackgroundSaves.check

    def check_when_done(self: BackgroundSaves) -> None:
        if self._saving is not None:
            self._written.exception(60)
        check(self)

    monkeypatch.setattr(BackgroundSaves, "check", check_when_done)
    trial = in_job(managed, Fails, validation_period=Batch(20), checkpoint_policy="all")
    assert (trial.tries, managed.checkpoints()) == (2, [20])


def test_what_more_space_does_not_help(root: Path) -> None:
    """A limit on the size of files ends training at once; torch's "unexpected pos" tells nobody
    why."""
    Large.background, Large.free_at = False, None
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match=r"state_dict\.pth: File too large"):
            fit(Large, max_length=Batch(10), checkpoint_period=Batch(5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert fold_trial(Store(root).experiment(1).trial(1)).checkpoints == ()
