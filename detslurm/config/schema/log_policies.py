"""Log policies: what a line of the log does to a trial's future."""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, Literal

from detslurm.config.fields import Section, accepts, must

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
