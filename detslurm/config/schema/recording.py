"""Recording: metrics from the code's trackers and output, and the policies of a trial's log."""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, Literal

import msgspec

from detslurm.config.fields import Section, Text, accepts, must

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


Action = Literal["cancel_retries", "exclude_node"]


class OldAction(Section, frozen=True, kw_only=True):
    """The older form of an action."""

    type: Action


def pattern_fault(value: Any) -> str | None:
    """Return why a text is not a regular expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


class LogPolicy(Section, frozen=True, kw_only=True):
    """A pattern, searched for in every line, and the action on a match.

    A policy without a pattern disables the policy of the same name that a template, the site or the
    defaults have.
    """

    name: str | None = None
    pattern: Annotated[str | None, must(pattern_fault, "a regular expression")] = None
    action: Annotated[
        Action | None, accepts(Action | OldAction, '"cancel_retries" or "exclude_node"')
    ] = None


DEFAULT_POLICIES = (
    LogPolicy(name="CUDA OOM", pattern=".*CUDA out of memory.*"),
    LogPolicy(name="ECC Error", pattern=".*uncorrectable ECC error encountered.*"),
)
