"""One search to run, and the moments at which its regret is taken."""

from __future__ import annotations

from typing import NamedTuple

MOMENTS = (0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 1.0)
"""Parts of the budget."""


class Task(NamedTuple):
    """A search of a method on a problem.

    Attributes:
        problem: Name of the problem.
        method: Name of the method.
        workers: How many workers train at once.
        seed: Seed of the method and of the noise.
        budget: What all workers may spend together, in full trainings of average cost.
    """

    problem: str
    method: str
    workers: int
    seed: int
    budget: int
