"""The problems of the benchmark, by name."""

from __future__ import annotations

from pathlib import Path

from benchmarks.quality.hartmann import HARTMANNS, Hartmann
from benchmarks.quality.networks import NETWORKS, Networks
from benchmarks.quality.problem import Problem
from benchmarks.quality.tables import TABLES, Table

CURVES = (*HARTMANNS, NETWORKS)
"""The problems whose shorter trainings are known."""

SHORT = (
    "hartmann6", "hartmann6-poor", NETWORKS,
    "hpobench-credit_g", "hpolib-protein_structure", "nasbench201-cifar100",
)  # fmt: skip
"""The problems of the short form."""

LONG = (*CURVES, *(f"{kind}-{name}" for kind, names in TABLES.items() for name in names))
"""All problems."""


def problem_of(name: str, tables: Path) -> Problem:
    """Return a problem.

    Args:
        name: Its name.
        tables: The folder of the tables.
    """
    if name in HARTMANNS:
        return Hartmann(name)
    if name == NETWORKS:
        return Networks()
    kind, dataset = name.split("-", 1)
    return Table(tables, kind, dataset)
