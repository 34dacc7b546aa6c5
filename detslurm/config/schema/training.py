"""Settings of the training: its lengths, loop, profiler, seed, signal and outputs."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from msgspec import Meta

from detslurm.config.fields import (
    IGNORED,
    NonNegative,
    Positive,
    Section,
    Text,
    accepts,
    must,
)

Seed = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]


class Optimizations(Section, frozen=True, kw_only=True):
    """Options of distributed training; only the first three still mean something."""

    aggregation_frequency: Positive = 1
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = True
    gradient_compression: Annotated[bool, IGNORED] = False
    mixed_precision: Annotated[Literal["O0", "O1", "O2", "O3"], IGNORED] = "O0"
    tensor_fusion_threshold: Annotated[NonNegative, IGNORED] = 64
    tensor_fusion_cycle_time: Annotated[NonNegative, IGNORED] = 1
    auto_tune_tensor_fusion: Annotated[bool, IGNORED] = False
    grad_updates_size_file: Annotated[str | None, IGNORED] = None


class Profiling(Section, frozen=True, kw_only=True):
    """Whether the profiler runs, and in which batches of a Trainer."""

    enabled: bool = False
    begin_on_batch: NonNegative = 0
    end_after_batch: NonNegative | None = None
    sync_timings: Annotated[bool, IGNORED] = True


class Reproducibility(Section, frozen=True, kw_only=True):
    """The seed that all trials' seeds and samples are drawn from."""

    experiment_seed: Seed


UNITS = ("batches", "records", "epochs")


class Length(Section, frozen=True, kw_only=True, omit_defaults=True):
    """Exactly one of batches, records, epochs."""

    batches: NonNegative | None = None
    records: NonNegative | None = None
    epochs: NonNegative | None = None


class PositiveLength(Length, frozen=True, kw_only=True, omit_defaults=True):
    """A length of at least 1."""

    batches: Positive | None = None
    records: Positive | None = None
    epochs: Positive | None = None


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


def _within(value: Any) -> str | None:
    path = PurePosixPath(value)
    if path.is_absolute() or not path.parts or ".." in path.parts or not value.isprintable():
        return "must be a relative path below the working directory"
    return None


class Outputs(Section, frozen=True, kw_only=True):
    """Paths that lie in a directory of the trial; on all nodes if `shared`, else the first's."""

    paths: tuple[Annotated[Text, must(_within)], ...] = ()
    shared: bool = False
