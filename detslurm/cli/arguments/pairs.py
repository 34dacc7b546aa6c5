"""Arguments of the form KEY=VALUE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from detslurm.sdk.parts import ConfigErrors, parse


def data_of(pairs: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` words as data, where VALUE is YAML; raises `UsageError`."""
    return dict(map(_pair, pairs))


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"{text!r}: give KEY=VALUE")
    try:
        return key, parse(value, key).plain() if value else ""
    except ConfigErrors as error:
        why = error.problems[0].message
        raise click.UsageError(f"{text!r}: the value is not YAML that can be kept: {why}") from None
