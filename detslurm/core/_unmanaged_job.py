"""Joining the Slurm job of a batch script that detslurm did not submit, always on request."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from detslurm._base import contract
from detslurm._base.info import ClusterInfo, get_cluster_info
from detslurm._base.process import fatal_error
from detslurm.store import StoreError

if TYPE_CHECKING:
    from detslurm.exec.unmanaged_job import UnmanagedJob

logger = logging.getLogger("detslurm.core")

_joined: UnmanagedJob | None = None
_is_unrecorded = False


def join_job() -> ClusterInfo | None:
    """Make the Slurm job around this process an experiment, where detslurm did not submit it.

    `core.init()`, `pytorch.init()` and the launchers do this themselves. In a batch script of your
    own, call it to know the latest checkpoint before `core.init()`. Requeues of the job continue
    its experiment, and an array's elements are its trials. Nothing is joined in a job of detslurm,
    outside of Slurm jobs and with DETSLURM_TRACK=0; a store that can't be used is a warning.

    Returns:
        The task of this process, as `get_cluster_info()`, or None if there is none.

    Raises:
        RuntimeError: If the first process of this step opened no run within two minutes.

    Example:
        import detslurm as det

        info = det.join_job()
        latest = info.latest_checkpoint if info is not None else None
    """
    global _joined
    contract.drop_inherited_run(os.environ)
    if contract.MASTER not in os.environ and "SLURM_JOB_ID" in os.environ and not _is_unrecorded:
        _joined = _join()
    info = get_cluster_info()
    if _joined is not None and _joined.has_ended and info is not None:
        logger.warning(
            "trial %d has ended, and this process records in it once more: new reports replace old"
            " ones of the same steps. Run each training in a process of its own",
            info.trial.trial_id,
        )
    return info


def _join() -> UnmanagedJob | None:
    from detslurm.exec.unmanaged_job import join  # only here: other scripts need no Slurm

    global _is_unrecorded
    try:
        joined = join()
    except (StoreError, OSError) as err:
        logger.warning("this run is not recorded: the store can't be used (%s)", err)
        _is_unrecorded = True  # for good: the other ranks go by what the first one found
        return None
    if joined is not None:
        os.environ.update(joined.environment())
        joined.watch_signals()
        atexit.register(_close_at_exit, joined)
    return joined


def _close_at_exit(joined: UnmanagedJob) -> None:
    """End the run of a script that never called `core.init()`; after that the first end stands."""
    error = fatal_error()
    joined.finish(int(error is not None), repr(error))


def in_own_script() -> bool:
    """Whether this process, or its launcher, has joined a job that detslurm did not submit."""
    return _joined is not None or contract.OWN_SCRIPT in os.environ


def on_close() -> Callable[[str, str], None] | None:
    """A function to call with the outcome of this process's training, beside recording it."""
    joined = _joined
    if joined is None:
        return None
    return lambda outcome, reason: joined.finish(int(outcome == "error"), reason)
