"""Running out of memory: a property of the configuration when it happens at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from detslurm._base.info import get_cluster_info
from detslurm.errors import InvalidHP
from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext

# torch's words where the host has no more memory; only the error of devices has its own type.
_ON_HOST = ("can't allocate memory", "Cannot allocate memory", "not enough memory")


@contextmanager
def explaining_lack_of_memory(context: DeepSpeedTrialContext) -> Iterator[None]:
    """Name the configuration; before the trial's first batch is trained, as `InvalidHP`.

    A search then tries others, and nothing is restarted that would fail again. After that it is the
    error that it was: memory may have leaked, or been fragmented, and a restart may help.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as err:
        if not is_lack_of_memory(err):
            raise
        text = f"there is not enough memory for {_configuration(context)}: {_first_line(err)}"
        if not _has_trained(context):
            raise InvalidHP(text) from err
        err.add_note(text)
        raise


def _has_trained(context: DeepSpeedTrialContext) -> bool:
    """Whether a batch fitted before, in this run or an earlier run."""
    info = get_cluster_info()
    return bool(context._current_batch or (info is not None and info.trial._steps_completed))


def is_lack_of_memory(err: BaseException) -> bool:
    """Whether an error means that memory ran out, on the device or the host."""
    if isinstance(err, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(err) for words in _ON_HOST)


def _configuration(context: DeepSpeedTrialContext) -> str:
    if not context.models:
        return "the model, before there is an engine of it"
    engine = context.models[0]
    return (
        f"training with ZeRO stage {engine.zero_optimization_stage()} and micro-batches of"
        f" {engine.train_micro_batch_size_per_gpu()} records"
    )


def _first_line(err: BaseException) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0]
