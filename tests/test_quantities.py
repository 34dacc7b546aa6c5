"""Quantities read as people say them."""

from __future__ import annotations

import math

import pytest

from detslurm._quantities import counted


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
