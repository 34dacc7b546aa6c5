"""Time limits that no partition and no QOS grants."""

from __future__ import annotations

import math

import pytest

from detslurm.slurm.interface import PartitionLimits
from detslurm.slurm.walltime import Qos, refusal

SHORT = PartitionLimits(name="short", max_time=30)
OPEN = PartitionLimits(name="open")
OWNED = PartitionLimits(name="owned", qos="of_partition")
KNOWN = {
    "normal": Qos(),
    "small": Qos(20),
    "of_partition": Qos(40),
    "above": Qos(60, frozenset({"OverPartQOS"})),
    "below": Qos(60),
}
LONG = {**KNOWN, "long": Qos(flags=frozenset({"DenyOnLimit", "PartitionTimeLimit"}))}


@pytest.mark.parametrize(
    ("asked", "here", "known", "qos", "whose"),
    [
        (30, SHORT, {}, None, None),
        (31, SHORT, {}, None, "partition short"),
        (math.inf, SHORT, KNOWN, "normal", "partition short"),
        (31, SHORT, LONG, "normal", "partition short"),
        (31, SHORT, LONG, "long", None),
        (31, SHORT, LONG, None, None),  # perhaps the default one lifts the limit
        (31, None, KNOWN, "normal", None),
        (21, OPEN, KNOWN, "small", "QOS small"),
        (20, OPEN, KNOWN, "small", None),
        (21, OPEN, KNOWN, None, None),
        (41, OWNED, KNOWN, "normal", "the QOS of partition owned"),
        (41, OWNED, KNOWN, None, "the QOS of partition owned"),
        (30, OWNED, KNOWN, "small", None),  # the partition's comes first
        (41, OWNED, KNOWN, "below", "the QOS of partition owned"),
        (41, OWNED, KNOWN, "above", None),
        (61, OWNED, KNOWN, "above", "QOS above"),
    ],
)
def test_whose_limit_is_in_the_way(
    asked: float, here: PartitionLimits | None, known: dict[str, Qos], qos: str | None, whose: str
) -> None:
    """In Slurm's order; where it is not known which QOS counts, nothing is refused."""
    said = refusal(asked, here, known, qos)
    assert said is None if whose is None else f"and {whose} gives" in str(said)
