"""Checkpoints that are saved while training goes on.

A thread must not take part in collective calls: those of the training loop would come in between,
in another order on each rank. So each rank's thread does local work only: it writes files and
stores them. Work of all ranks together happens before and after that, between two batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from detslurm.core import DistributedContext
from detslurm.pytorch._hooks import Hooks
from detslurm.pytorch._state import TrialState

logger = logging.getLogger("detslurm.pytorch")

Submit = Callable[[Callable[[], Any]], Future[Any]]
"""Gives work to the thread."""
Saving = Generator[Future[Any], None, str]
"""Saves one checkpoint and returns its storage id. It yields once, what it gave to the thread, and
goes on when that is done. Closing it there asks nothing of other ranks."""


class BackgroundSaves:
    """Saves checkpoints one after the other. All ranks make the same calls, but for `close()`.

    `kept` is that of the `CheckpointWriter`.
    """

    def __init__(
        self, dist: DistributedContext, hooks: Hooks, kept: Callable[..., str | None]
    ) -> None:
        self._dist, self._hooks, self._kept = dist, hooks, kept
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Saving | None = None
        self._written: Future[Any] = Future()
        self._state = TrialState()  # counts the unfinished checkpoint as saved

    def begin(self, save: Callable[[Submit], Saving], state: TrialState) -> None:
        """Begin to save a checkpoint."""
        saving = save(self._pool.submit)
        self._written = next(saving)
        self._saving, self._state = saving, state
        state.ranks, state.last_ckpt = self._dist.size, state.batches_trained

    def check(self) -> None:
        """Complete the checkpoint that was begun, if its files are written on all ranks; raises
        what went wrong with it on any of them."""
        if self._saving is not None and all(self._dist.allgather(self._written.done())):
            self.wait(leaving=False)

    def wait(self, *, leaving: bool) -> None:
        """Wait until the checkpoint that was begun is complete; raises what went wrong with it."""
        # Taken out first: should it have failed, the error is raised once, not at each later call.
        saving, self._saving = self._saving, None
        if saving is None:
            return
        uuid = self._kept(lambda: self._completed(saving), leaving=leaving)
        if uuid is None:
            self._state.last_ckpt = 0  # nothing was saved after that batch
        else:
            self._hooks.on_checkpoint_upload_end(uuid)

    def _completed(self, saving: Saving) -> str:
        wait([self._written])
        try:
            next(saving)
        except StopIteration as end:
            return str(end.value)
        raise RuntimeError("a checkpoint is saved in one go")

    def close(self) -> None:
        """Let begun saves come to their end, when other ranks can't be asked."""
        saving, self._saving = self._saving, None
        try:
            if saving is not None and self._dist.size == 1:
                self._completed(saving)
            elif saving is not None:
                saving.close()
                self._written.result()
        except Exception as err:
            # Another error came first: that error is raised.
            logger.error("a checkpoint could not be saved: %s", err)
        finally:
            # Waits for the thread: a process that ended now would leave a checkpoint that is never
            # sealed.
            self._pool.shutdown()
