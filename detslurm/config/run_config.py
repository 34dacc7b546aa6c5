"""The part of a recorded configuration that runs read: nodes start faster without the schema.

A store may have been written by another version. Unknown fields are skipped, and a field that is
missing has the value that the schema gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every part: immutable."""


class RunMetric(_Section, frozen=True, kw_only=True):
    """One of several metrics of a search."""

    name: str


class RunSearcher(_Section, frozen=True, kw_only=True):
    """The keys that all searchers share, and the length of a trial's training."""

    name: str = "single"
    metric: str | None = None
    metrics: tuple[RunMetric, ...] = ()
    constraints: dict[str, str] = {}
    source_checkpoint_uuid: str | None = None
    max_length: int | dict[str, int] | None = None
    length_per_round: int | dict[str, int] | None = None
    unit: str | None = None
    time_metric: str | None = None
    max_trials: int = 1
    max_concurrent_trials: int | None = None
    stop: dict[str, Any] | None = None

    @property
    def compared(self) -> tuple[str, ...]:
        """The metrics that trials are compared by, and those of constraints."""
        first = () if self.metric is None else (self.metric,)
        others = (metric.name for metric in self.metrics)
        return tuple(dict.fromkeys((*first, *others, *self.constraints)))

    @property
    def length(self) -> int | None:
        """The number in `max_length`; None without a length."""
        length = self.max_length
        return next(iter(length.values())) if isinstance(length, dict) else length

    @property
    def length_unit(self) -> str | None:
        """The unit of `max_length` or `length_per_round`, or that of a custom search."""
        length = self.max_length or self.length_per_round
        return next(iter(length)) if isinstance(length, dict) else self.unit


class RunReproducibility(_Section, frozen=True, kw_only=True):
    """The seed that all trials' seeds and samples are drawn from."""

    experiment_seed: int = 0


class RunResources(_Section, frozen=True, kw_only=True):
    """The slots of each trial."""

    slots_per_trial: int = 1


class RunEnvironment(_Section, frozen=True, kw_only=True):
    """Variables as `NAME=value`, or as `NAME` alone, and the image, for each kind of slot."""

    environment_variables: dict[str, tuple[str, ...]] = {}
    image: dict[str, str | None] = {}


class RunBindMount(_Section, frozen=True, kw_only=True):
    """A directory of the node, mounted in the container of the code."""

    host_path: str
    container_path: str
    read_only: bool = False
    propagation: str = "rprivate"


class RunIdleGuard(_Section, frozen=True, kw_only=True):
    """The action on a run that has used and reported nothing for `minutes`."""

    minutes: float = 30.0
    action: str = "warn"


class RunSlurm(_Section, frozen=True, kw_only=True):
    """The options of jobs that their processes read, too."""

    container: str = "none"
    container_args: tuple[str, ...] = ()
    container_prefix: tuple[str, ...] = ()
    image_root: str | None = None
    private_tmp: bool = False
    mpi: str | None = None
    network_interface: str | None = None
    slot_type: str | None = None
    signal_lead: float = 120
    idle_guard: RunIdleGuard = RunIdleGuard()
    warm_start: bool = False


class RunProfiling(_Section, frozen=True, kw_only=True):
    """Whether the profiler runs, and from which batch of a Trainer on."""

    enabled: bool = False
    begin_on_batch: int = 0


class RunLogPolicy(_Section, frozen=True, kw_only=True):
    """A pattern that is looked for in every line, and the action on a match."""

    name: str | None = None
    pattern: str | None = None
    action: str | None = None


class RunRecord(_Section, frozen=True, kw_only=True):
    """The trackers whose values are recorded, and the names that belong to validation."""

    from_: tuple[str, ...] = msgspec.field(name="from", default=())
    validation: tuple[str, ...] = ()


class RunOutputs(_Section, frozen=True, kw_only=True):
    """The paths of the working directory that stay, and whether all nodes have them."""

    paths: tuple[str, ...] = ()
    shared: bool = False


class RunLogMetrics(_Section, frozen=True, kw_only=True):
    """A pattern for lines of the log, whose named groups are metrics."""

    pattern: str
    group: str = "validation"


class RunWebhooks(_Section, frozen=True, kw_only=True):
    """The notices of the experiment, by name, beside those for all experiments; or none."""

    webhook_name: tuple[str, ...] = ()
    exclude: bool = False


class RunIntegrations(_Section, frozen=True, kw_only=True):
    """Systems around an experiment."""

    webhooks: RunWebhooks | None = None


class RunConfig(_Section, frozen=True, kw_only=True):
    """An experiment's configuration as its runs read it; `plain` is the whole of it."""

    plain: dict[str, Any] = {}
    entrypoint: str | tuple[str, ...] = ()
    arguments: str | dict[str, Any] | None = None  # `form_of` gives it its type
    searcher: RunSearcher = RunSearcher()
    reproducibility: RunReproducibility = RunReproducibility()
    checkpoint_storage: dict[str, Any] = {}
    hyperparameters: dict[str, Any] = {}
    resources: RunResources = RunResources()
    environment: RunEnvironment = RunEnvironment()
    bind_mounts: tuple[RunBindMount, ...] = ()
    slurm: RunSlurm = RunSlurm()
    max_restarts: int = 5
    restart_repeated_failures: bool = False
    preemption_timeout: float | None = None
    preempt_signal: str | None = None
    outputs: RunOutputs | None = None
    profiling: RunProfiling = RunProfiling()
    log_policies: tuple[RunLogPolicy, ...] = ()
    record: RunRecord | None = None
    metrics_from_log: tuple[RunLogMetrics, ...] = ()
    integrations: RunIntegrations | None = None
    debug: bool = False

    @property
    def webhooks(self) -> RunWebhooks:
        """The notices of the experiment."""
        section = self.integrations
        return (section and section.webhooks) or RunWebhooks()

    def image(self, slot_type: str) -> str | None:
        """The image of the code's container; None where `slurm.container` starts none."""
        return None if self.slurm.container == "none" else self.environment.image.get(slot_type)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Read a resolved configuration. Raises `ValueError` where a field has a wrong type."""
        return msgspec.convert({**plain, "plain": plain}, cls)
