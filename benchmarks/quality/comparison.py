"""A comparison: which methods run on which problems, and the table and picture of its results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import cache_directory, python_with
from benchmarks.quality.contenders import METHODS
from benchmarks.quality.figures import (
    Estimate,
    Table,
    bootstrap,
    mean_over_problems,
    ranked,
    tied_first,
)
from benchmarks.quality.peers import PEERS, SLOW
from benchmarks.quality.problems import CURVES, LONG, SHORT
from benchmarks.quality.session import (
    Results,
    Session,
    tables_of,
)
from benchmarks.quality.task import MOMENTS, Task

WORKERS = (1, 8, 64)
SHARES = (0.05, 0.25, 1.0)
"""The parts of the budget of which tables tell."""

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
"""The other projects and the tables."""

WITHOUT_CURVES = ("random", "Optuna tpe")
"""The methods for problems with full trainings only: there each halving is random search."""


@dataclass(frozen=True)
class Comparison:
    """The short form, or the long one."""

    problems: Sequence[str]
    peers: Sequence[str]
    seeds: int
    budget: int = 100

    def tasks(self, methods: Sequence[str]) -> list[Task]:
        """Return the searches of some methods."""
        return [
            Task(problem, method, workers, seed, self.budget)
            for problem in self.problems
            for method in methods
            if _runs_on(method, problem)
            for workers in WORKERS
            for seed in range(self.seeds)
        ]

    def table(self, results: Results, group: str, workers: int, share: float) -> Table:
        """Return the regrets of a group's methods at a part of the budget.

        Args:
            results: The results of all tasks.
            group: `curves` or `tables`.
            workers: The number of workers.
            share: The part.
        """
        problems = [name for name in self.problems if (name in CURVES) == (group == "curves")]
        moment = MOMENTS.index(share)
        return {
            method: [
                [
                    results[Task(problem, method, workers, seed, self.budget)][moment]
                    for seed in range(self.seeds)
                ]
                for problem in problems
            ]
            for method in (*METHODS, *self.peers)
            if _runs_on(method, problems[0])
        }

    def lines(self, results: Results, workers: int) -> dict[str, list[tuple[float, float]]]:
        """Return the mean rank of each method over the budget, where curves are known."""
        found: dict[str, list[tuple[float, float]]] = {}
        for share in MOMENTS:
            for method, ranks in ranked(self.table(results, "curves", workers, share)).items():
                found.setdefault(method, []).append((share, mean_over_problems(ranks)))
        return found


def _runs_on(method: str, problem: str) -> bool:
    return problem in CURVES or method in WITHOUT_CURVES or " + " in method


def run_all(comparison: Comparison) -> Results:
    """Run all searches of a comparison that were not run before, and return their results.

    Args:
        comparison: The comparison.
    """
    versions = tuple(REQUIREMENTS.read_text().split())
    peers = python_with(versions)
    session = Session(cache_directory() / "quality.jsonl", tables_of(peers), versions)
    ours = session.run(Path(sys.executable), "ours", comparison.tasks(tuple(METHODS)))
    return {**ours, **session.run(peers, "peers", comparison.tasks(comparison.peers))}


def chosen() -> Comparison:
    """Return the short form, or with `DETSLURM_BENCH_QUALITY=long` the long one."""
    if os.environ.get("DETSLURM_BENCH_QUALITY") == "long":
        return Comparison(LONG, tuple(PEERS), seeds=30)
    return Comparison(SHORT, [name for name in PEERS if name not in SLOW], seeds=20)


def markdown(comparison: Comparison, results: Results) -> Iterator[str]:
    """Yield the tables of all results, line by line."""
    for group, title in (("curves", "Early stopping possible"), ("tables", "Full trainings only")):
        for workers in WORKERS:
            yield f"**{title}, {workers} worker{'s' * (workers > 1)}**"
            yield ""
            yield from _markdown_table(
                {share: comparison.table(results, group, workers, share) for share in SHARES}
            )
            yield ""


def _markdown_table(tables: Mapping[float, Table]) -> Iterator[str]:
    heads = [f"{what} at {100 * s:g} %" for what in ("rank", "regret") for s in tables]
    yield "| method | " + " | ".join(heads) + " |"
    yield "|---|" + "---|" * len(heads)
    ranks = {share: ranked(table) for share, table in tables.items()}
    firsts = {share: tied_first(table) for share, table in tables.items()}
    last = ranks[max(ranks)]
    for method in sorted(last, key=lambda name: mean_over_problems(last[name])):
        cells = []
        for share, found in ranks.items():
            text = _estimate(bootstrap(found[method]), 1)
            cells.append(f"**{text}**" if method in firsts[share] else text)
        cells += [_estimate(bootstrap(table[method]), 3) for table in tables.values()]
        yield f"| {method} | " + " | ".join(cells) + " |"


def _estimate(estimate: Estimate, digits: int) -> str:
    value, low, high = (f"{part:.{digits}f}" for part in estimate)
    return f"{value} ({low}-{high})"
