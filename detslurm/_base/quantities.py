"""Quantities as sentences for people have them."""

from __future__ import annotations

from typing import Any


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """A number with its noun, `plural` where an "s" is not enough: 1 checkpoint, 2 checkpoints."""
    return f"{count:g} {noun}" if count == 1 else f"{_plain(count)} {plural or noun + 's'}"


def _plain(count: float) -> str:
    return str(count) if isinstance(count, int) else f"{count:g}"


def brief(value: float) -> str:
    """A number in four digits, as log lines have it, whatever its size and kind."""
    try:
        return f"{value:.4g}"
    except OverflowError:  # an integer that is too large for a float
        from decimal import Decimal

        return f"{Decimal(value):.4g}"
    except (TypeError, ValueError):  # numbers of other packages need not have digits to choose
        return str(value)


def number(value: Any) -> str:
    """A number as tables show it: enough digits to compare, no more."""
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def amount(value: float, digits: int = 4) -> str:
    """A cost, in so many digits or as a whole number: 0.2667, 23,040."""
    rounded = float(f"{value:.{digits}g}")
    return f"{value:,.0f}" if rounded >= 1000 else f"{round(rounded, 4):g}"


def human_size(size: float) -> str:
    """A number of bytes, in units of 1024: 12.1 KiB."""
    import humanize

    return humanize.naturalsize(size, binary=True)
