"""Seconds on the command line."""

from __future__ import annotations

from typing import Any, Final

import click

_MOST: Final = 1e12


class Seconds(click.FloatRange):
    """A number of seconds: finite, and small enough for computations."""

    def __init__(self, *, min: float = 0.0, min_open: bool = False) -> None:
        super().__init__(min=min, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or a usage error."""
        found = super().convert(value, param, ctx)
        if not found <= _MOST:  # nor is NaN
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return found
