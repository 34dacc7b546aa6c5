"""Messages for expected errors; imported only when something went wrong."""

from __future__ import annotations

import os
from typing import NamedTuple


class ErrorMessage(NamedTuple):
    """The message, and the exit status."""

    text: str
    exit_code: int = 1


def described(error: Exception) -> ErrorMessage | None:
    """The message for an expected error, None for a fault of our own."""
    from detslurm.config.errors import ConfigErrors
    from detslurm.sdk.errors import LifecycleError, SubmitError
    from detslurm.slurm.interface import SlurmError
    from detslurm.store.errors import StoreError

    if isinstance(error, ConfigErrors):
        return ErrorMessage(str(error), 2)
    if isinstance(error, SubmitError):
        return ErrorMessage(str(error), getattr(error, "exit_code", 1))
    if isinstance(error, (LifecycleError, SlurmError, StoreError)):
        return ErrorMessage(str(error))
    return ErrorMessage(_io(error)) if isinstance(error, OSError) else None


def _io(error: OSError) -> str:
    text = error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return text
    return f"{os.fsdecode(error.filename)}: {text}"
