"""Quantities read as people say them."""

from __future__ import annotations

import math

import pytest

from detslurm._base.quantities import amount, counted


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 processes"),
        (1, "1 process"),
        (1.0, "1 process"),
        (1.5, "1.5 processes"),
        (10_000_000, "10000000 processes"),
        (math.inf, "inf processes"),
    ],
)
def test_a_number_and_its_noun_agree(count: float, text: str) -> None:
    """Also where the plural is not one with an "s"."""
    assert counted(count, "process", "processes") == text


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [(999.6, 3, "1,000"), (999.6, 4, "999.6"), (23040, 4, "23,040"), (0.2667, 3, "0.267"),
     (0.00003, 4, "0"), (0, 4, "0")],
)  # fmt: skip
def test_an_amount_has_no_exponent(number: float, digits: int, text: str) -> None:
    """Whatever its rounding makes of it."""
    assert amount(number, digits) == text
