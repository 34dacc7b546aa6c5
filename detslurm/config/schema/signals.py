"""The signal by which code that knows nothing of detslurm is asked to leave."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from detslurm.config.fields import accepts, must

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
_EXPECTED = "one of SIGTERM, SIGUSR1, SIGUSR2, SIGINT, with or without SIG"


def canonical_signal(value: str) -> str | None:
    """The full name of a signal; None if `preempt_signal` can't be this signal."""
    name = value.strip().upper()
    name = name if name.startswith("SIG") else f"SIG{name}"
    return name if name in SIGNALS else None


def _known(value: Any) -> str | None:
    return None if canonical_signal(value) else ""


PreemptSignal = Annotated[
    Literal["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT"] | None,
    accepts(str, _EXPECTED),
    must(_known, _EXPECTED),
]
