"""Settings of the training loop, of the profiler, of reproducibility."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from detslurm.config.fields import IGNORED, NonNegative, Positive, Section

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


class RetentionPolicy(Section, frozen=True, kw_only=True):
    """How many days logs are kept; -1 is forever."""

    log_retention_days: Annotated[int, Meta(ge=-1, le=32767)] | None = None
