"""The whole configuration of an experiment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from detslurm.config.fields import (
    IGNORED,
    FrozenDict,
    NonNegative,
    Positive,
    Section,
    Text,
    accepts,
    deprecated,
    expected,
    freeze,
    must,
    title,
)
from detslurm.config.schema.arguments import Arguments
from detslurm.config.schema.environment import Environment
from detslurm.config.schema.hyperparameters import Hyperparameters
from detslurm.config.schema.integrations import PBS, Integrations
from detslurm.config.schema.recording import AnyRecord, LogMetrics, LogPolicy
from detslurm.config.schema.resources import BindMount, Resources
from detslurm.config.schema.searcher import AnySearcher
from detslurm.config.schema.slurm import Slurm
from detslurm.config.schema.storage import CheckpointStorage
from detslurm.config.schema.training import (
    Length,
    Optimizations,
    Outputs,
    PreemptSignal,
    Profiling,
    Reproducibility,
)

ARGUMENTS = "flags, hydra, a template with {name}, or a mapping with flags or file"
FIT = "training code passes it to Trainer.fit()"


def _command(value: Any) -> str | None:
    first = value if isinstance(value, str) else value[0]
    return None if first.strip() else "it names nothing to run"


Argv = Annotated[tuple[str, ...], Meta(min_length=1)]
Period = Annotated[Length, deprecated(FIT)]


class ExperimentConfig(Section, frozen=True, kw_only=True):
    """An experiment: its code, resources and hyperparameters, and the results to keep."""

    name: Annotated[Text, must(title)]
    entrypoint: Annotated[Text | Argv, must(_command, "text, or a list of words")]
    searcher: AnySearcher
    reproducibility: Reproducibility
    checkpoint_storage: CheckpointStorage
    hyperparameters: Hyperparameters = Hyperparameters()
    arguments: Annotated[Text | Arguments | None, expected(ARGUMENTS)] = None
    resources: Resources = Resources()
    environment: Environment = Environment()
    slurm: Slurm = Slurm()

    description: str | None = None
    labels: tuple[Annotated[str, must(title)], ...] = ()
    workspace: str = ""
    project: str = ""
    data: FrozenDict = FrozenDict()

    max_restarts: NonNegative = 5
    restart_repeated_failures: bool = False
    preemption_timeout: NonNegative | None = None
    preempt_signal: PreemptSignal = None
    outputs: Annotated[
        Outputs | None,
        accepts(tuple[str, ...] | Outputs, "a list of paths, or a mapping of paths and shared"),
    ] = None
    checkpoint_policy: Literal["best", "all", "none"] = "best"
    perform_initial_validation: bool = False
    records_per_epoch: Annotated[NonNegative, IGNORED] = 0
    min_validation_period: Period = Length(batches=0)
    min_checkpoint_period: Period = Length(batches=0)
    scheduling_unit: Annotated[Positive, deprecated(FIT + " as reporting_period")] = 100
    optimizations: Optimizations = Optimizations()
    profiling: Profiling = Profiling()
    log_policies: tuple[LogPolicy, ...] = ()
    record: AnyRecord = None
    metrics_from_log: tuple[LogMetrics, ...] = ()

    bind_mounts: tuple[BindMount, ...] = ()
    retention_policy: Annotated[FrozenDict | None, IGNORED] = None
    integrations: Integrations | None = None
    security: Annotated[FrozenDict | None, IGNORED] = None
    pbs: Annotated[PBS, IGNORED] = PBS()
    tensorboard_storage: Annotated[FrozenDict | None, IGNORED] = None
    data_layer: Annotated[FrozenDict | None, IGNORED] = None
    internal: Annotated[Any, IGNORED] = None
    debug: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain data, fit for JSON; `from_dict` is its inverse."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> ExperimentConfig:
        """A configuration from what `to_dict` gave; it is trusted, not checked for sense."""
        return msgspec.convert(plain, cls, dec_hook=_decode)

    def masked(self) -> dict[str, Any]:
        """`to_dict` with every secret replaced: what may be shown."""
        from detslurm.config.masking import masked

        return masked(self.to_dict(), type(self))


def _decode(kind: type, value: Any) -> Any:
    if kind is Hyperparameters:
        return Hyperparameters.parse(value)
    return freeze(value)
