"""Metrics that the code gives to a tracker, or prints, and that its trial records."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from detslurm.config.fields import Section, Text, accepts, must
from detslurm.config.schema.log_policies import pattern_fault

Source = Literal["tensorboard", "wandb", "mlflow"]
SOURCES: tuple[Source, ...] = ("tensorboard", "wandb", "mlflow")
VALIDATION = ("val*", "valid*", "eval*", "test*")
_FORM = '"auto", or a list of "tensorboard", "wandb", "mlflow"'


class Record(Section, frozen=True, kw_only=True):
    """The trackers whose values are recorded, and the names that belong to validation."""

    from_: Annotated[tuple[Source, ...], accepts(Literal["auto"] | tuple[Source, ...], _FORM)] = (
        msgspec.field(name="from", default=SOURCES)
    )
    validation: tuple[Text, ...] = VALIDATION


AnyRecord = Annotated[
    Record | None,
    accepts(
        Literal["auto"] | tuple[Source, ...] | Record,
        f"{_FORM}, or a mapping with from, validation",
    ),
]


def _group(value: Any) -> str | None:
    return "a group has no dot in its name" if "." in value else None


def _metric_pattern(value: Any) -> str | None:
    fault = pattern_fault(value)
    if fault is not None:
        return fault
    names = set(re.compile(value).groupindex) - {"step"}
    return None if names else r"it names no metric: write a group such as (?P<loss>\S+)"


class LogMetrics(Section, frozen=True, kw_only=True):
    """A pattern for lines of the log, whose named groups are metrics; `step` is their step."""

    pattern: Annotated[Text, must(_metric_pattern, "a regular expression with named groups")]
    group: Annotated[Text, must(_group)] = "validation"
