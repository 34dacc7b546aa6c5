"""Means, ranks and intervals of the regrets of many searches; pure functions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

Table = Mapping[str, Sequence[Sequence[float]]]
"""Regrets by method: for each problem, those of all seeds, in the same order for each method."""


class Estimate(NamedTuple):
    """A figure, and between which values it lies with a probability of 95 %."""

    value: float
    low: float
    high: float


def ranks(regrets: Mapping[str, float]) -> dict[str, float]:
    """Return the rank of each method, 1 for the smallest regret; equal ones share the mean.

    Args:
        regrets: The regret of each method in one search.
    """
    ordered = sorted(regrets.values())
    places = {
        value: fmean(place for place, other in enumerate(ordered, 1) if other == value)
        for value in set(ordered)
    }
    return {method: places[value] for method, value in regrets.items()}


def ranked(table: Table) -> dict[str, list[list[float]]]:
    """Return the ranks that methods have among each other, for each problem and seed.

    Args:
        table: The regrets.
    """
    problems = len(next(iter(table.values())))
    by_method: dict[str, list[list[float]]] = {method: [] for method in table}
    for problem in range(problems):
        seeds = range(len(next(iter(table.values()))[problem]))
        rows = [
            ranks({m: regrets[problem][seed] for m, regrets in table.items()}) for seed in seeds
        ]
        for method, columns in by_method.items():
            columns.append([row[method] for row in rows])
    return by_method


def mean_over_problems(values: Sequence[Sequence[float]]) -> float:
    """Return the mean over problems of the mean over seeds.

    Args:
        values: For each problem, the values of all seeds.
    """
    return fmean(fmean(seeds) for seeds in values)


def bootstrap(
    values: Sequence[Sequence[float]],
    figure: Callable[[Sequence[Sequence[float]]], float] = mean_over_problems,
    rounds: int = 1000,
) -> Estimate:
    """Return a figure with its interval: seeds are drawn again, within each problem.

    Args:
        values: For each problem, the values of all seeds.
        figure: The figure of such values; their mean by default.
        rounds: How often seeds are drawn.
    """
    draws = random.Random(0)
    again = sorted(
        figure([draws.choices(seeds, k=len(seeds)) for seeds in values]) for _ in range(rounds)
    )
    return Estimate(figure(values), again[int(0.025 * rounds)], again[int(0.975 * rounds) - 1])


def tied_first(table: Table) -> set[str]:
    """Return the methods whose mean rank is not worse than the best one's beyond noise.

    The difference of the ranks is taken seed by seed, and is noise if its interval has 0 in it.

    Args:
        table: The regrets.
    """
    found = ranked(table)
    first = min(found, key=lambda method: mean_over_problems(found[method]))
    return {method for method in found if bootstrap(_behind(found[method], found[first])).low <= 0}


def _behind(
    mine: Sequence[Sequence[float]], firsts: Sequence[Sequence[float]]
) -> list[list[float]]:
    return [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(mine, firsts, strict=True)]
