"""Write the files of one checkpoint, and find those of another: what trials of every kind share."""

from __future__ import annotations

import abc
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

import detslurm
from detslurm.config.masking import shareable
from detslurm.config.secret_values import shareable_sample
from detslurm.core import Context
from detslurm.core._collective import run_collectively
from detslurm.core._retries import keep_trying
from detslurm.core._sharded_save import ShardedSave
from detslurm.errors import CheckpointNotFound
from detslurm.pytorch._base_context import TrialContext
from detslurm.pytorch._base_trial import BaseTrial
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._state import TrialState
from detslurm.pytorch.checkpointing import _checkpoint_dir as files
from detslurm.pytorch.checkpointing._background import BackgroundSaves, Saving, Submit
from detslurm.pytorch.checkpointing._code import add_code, frozen_code
from detslurm.pytorch.checkpointing._disk_full import explaining_full_disk, is_full
from detslurm.pytorch.checkpointing._snapshot import Snapshots

logger = logging.getLogger("detslurm.pytorch")

_NEEDED = (
    "name",
    "entrypoint",
    "hyperparameters",
    "data",
    "searcher",
    "resources",
    "reproducibility",
    "records_per_epoch",
    "optimizations",
)
"""The configuration of a trial that is made again to be used."""


class UnwrittenFile(NamedTuple):
    """A file or directory whose contents are known, to be written in the background."""

    path: Path
    write: Callable[[], Any]


class CheckpointWriter:
    """Writes the files of checkpoints, and records them once they are complete."""

    def __init__(
        self,
        trial: BaseTrial,
        context: TrialContext,
        core: Context,
        hooks: Hooks,
        *,
        kind: str,
        is_trainer: bool,
    ) -> None:
        self._trial, self._context, self._core, self._hooks = trial, context, core, hooks
        self._kind, self._is_trainer = kind, is_trainer

    def write(
        self, counters: TrialState, fill: Callable[[Path], None], *, shard: bool = False
    ) -> str:
        """Write a checkpoint, its own files by `fill`; returns the storage id. With `shard` a
        collective of all ranks."""
        store_path = self._core.checkpoint.store_path(_metadata(counters), shard=shard)
        with store_path as (path, uuid):
            with explaining_full_disk(path / files.STATE):
                fill(path)
                self._add_code(path, uuid)
            self._complete(path, counters)
        # Only now is it sealed and recorded: until here a crash leaves a part that no reader
        # sees.
        return self._saved(uuid, counters)

    def write_in_background(
        self,
        counters: TrialState,
        begin: Callable[[Path], Sequence[UnwrittenFile]],
        submit: Submit,
    ) -> Saving:
        """Write a checkpoint of all ranks while training goes on; `begin` copies the state, for
        this rank's files."""
        dist = self._context.distributed
        with self._core.checkpoint._begun(_metadata(counters)) as save:
            unwritten, given_up = [*begin(save.path)], threading.Event()
            if dist.rank == 0:
                code = partial(self._add_code, save.path, save.storage_id)
                unwritten.append(UnwrittenFile(save.path / "code", code))
            written = submit(lambda: _write_files(unwritten, save, given_up))
            try:
                yield written
            except GeneratorExit:
                logger.warning("checkpoint %s is given up: it is not complete", save.storage_id)
                given_up.set()
                wait([written])
                raise
            run_collectively(dist, written.result, lambda _: None)
            run_collectively(dist, lambda: self._complete(save.path, counters), lambda _: None)
            save.divide()
            save.seal(save.store)
        return self._saved(save.storage_id, counters)

    def _add_code(self, path: Path, uuid: str) -> None:
        if self._context.distributed.rank == 0:
            final = self._core.checkpoint._is_final(uuid)
            keep_trying(lambda: add_code(path / "code", type(self._trial), final=final))

    def _complete(self, path: Path, counters: TrialState) -> None:
        """Add the small files that every kind of trial has; on the chief."""
        if self._context.distributed.rank == 0:
            with explaining_full_disk(path / files.STATE):
                files.write(path, counters.to_dicts(), self._load_data())
                self._hooks.on_checkpoint_end(str(path))
                self._hooks.on_checkpoint_write_end(str(path))

    def _saved(self, uuid: str, counters: TrialState) -> str:
        if self._context.distributed.rank == 0:
            logger.info("saved checkpoint %s after batch %d", uuid, counters.batches_trained)
        return uuid

    def kept(self, save: Callable[[], str], *, leaving: bool) -> str | None:
        """The storage id; None where there is no space left and training can go on without."""
        try:
            return save()
        except Exception as err:
            dist = self._context.distributed
            # All ranks failed or none (see `run_collectively`), so all make this call. That the
            # disk is full may have been seen on one rank alone: they go on together, or raise
            # together.
            if leaving or not any(dist.allgather(is_full(err))):
                raise
            if dist.rank == 0:
                logger.error("no checkpoint is saved, training goes on until the next: %s", err)
            return None

    def _load_data(self) -> dict[str, Any]:
        kind, config, frozen = type(self._trial), self._context._exp_conf, frozen_code()
        hparams, space = self._context._hparams, (config or {}).get("hyperparameters") or {}
        return {
            "trial_type": self._kind,
            "experiment_config": None if config is None else shareable(config, _NEEDED),
            "hparams": hparams and shareable_sample(hparams, space),
            "trial_cls_spec": f"{kind.__module__}:{kind.__qualname__}",
            "is_trainer": self._is_trainer,
            "code": None if frozen is None else str(frozen),
        }


class Checkpoints(abc.ABC):
    """The checkpoints of one trial; all ranks make the same calls, but for `close()`."""

    _kind: ClassVar[str]
    """The class that derives from it: what loads the checkpoint later depends on it."""
    _background: BackgroundSaves | None = None
    """Saves them while training goes on; by default `save()` returns when all is done."""

    def __init__(
        self, trial: Any, context: Any, core: Context, hooks: Hooks, *, is_trainer: bool
    ) -> None:
        self._trial, self._context, self._hooks = trial, context, hooks
        self._writer = CheckpointWriter(
            trial, context, core, hooks, kind=self._kind, is_trainer=is_trainer
        )
        if context._saves_in_background and self._can_defer():
            self._background = BackgroundSaves(context.distributed, hooks, self._writer.kept)
        self._snapshots = Snapshots()

    def _can_defer(self) -> bool:
        """Whether files can be written in the background."""
        return True

    @abc.abstractmethod
    def save(self, state: TrialState, *, leaving: bool = False, alone: bool = False) -> str | None:
        """Save everything; returns the storage id, None where there is none (yet).

        With `alone` nothing is asked of other ranks, which may not be there any more.
        """

    def check(self) -> None:
        """Go on with a checkpoint that was begun; raises what went wrong with it on any rank."""
        if self._background is not None:
            self._background.check()

    def wait(self, *, leaving: bool = True) -> None:
        """Wait until a checkpoint that was begun is complete; raises what went wrong with it."""
        if self._background is not None:
            self._background.wait(leaving=leaving)

    def close(self) -> None:
        """Let begun saves come to their end, when other ranks can't be asked."""
        if self._background is not None:
            self._background.close()

    @abc.abstractmethod
    def load(self, path: Path, state: TrialState, *, own_options: bool = False) -> None:
        """Put everything back, but for hyperparameters with `own_options`."""


def _write_files(
    unwritten: Sequence[UnwrittenFile], save: ShardedSave, given_up: threading.Event
) -> None:
    """Write this rank's files and store them, up to the one where the checkpoint is given up."""
    with explaining_full_disk(save.path / files.STATE):
        for file in unwritten:
            if given_up.is_set():
                return
            file.write()
            if file.path.is_relative_to(save.path):
                save.store_ahead(file.path)


def _metadata(counters: TrialState) -> dict[str, Any]:
    return {
        "steps_completed": counters.batches_trained,
        "framework": f"torch-{torch.__version__}",
        "format": "pickle",
        "detslurm_version": detslurm.__version__,
    }


@contextmanager
def opened(core: Context, checkpoint: str | None) -> Iterator[Path | None]:
    """The files of a checkpoint, by storage id or as a directory. Raises
    `detslurm.errors.CheckpointNotFound`."""
    if checkpoint is None:
        yield None
    elif Path(checkpoint).is_dir():
        yield Path(checkpoint)
    elif os.sep in str(checkpoint):
        raise CheckpointNotFound(f"latest_checkpoint: there is no directory {checkpoint}")
    else:
        with core.checkpoint.restore_path(checkpoint) as path:
            yield path
