"""How good the results of searches are: our methods beside those of other projects.

It takes longer than the others, so it runs only where it is named. `DETSLURM_BENCH_QUALITY=long`
has all tables and 30 seeds, and takes hours. Results are kept in the user's cache as they come,
so that an interrupted run goes on; `python -m benchmarks.quality` also writes docs/quality.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.bench import Bench
from benchmarks.quality.comparison import SHARES, WORKERS, chosen, run_all
from benchmarks.quality.contenders import METHODS
from benchmarks.quality.figures import mean_over_problems, ranked
from benchmarks.report import Row


def measure(bench: Bench) -> Iterator[Row]:
    """The mean rank of our best method beside the best of the others."""
    comparison = chosen()
    results = run_all(comparison)
    for workers in WORKERS:
        for share in SHARES:
            found = ranked(comparison.table(results, "curves", workers, share))
            means = {method: mean_over_problems(ranks) for method, ranks in found.items()}
            best = min(METHODS, key=means.__getitem__)
            peer = min(means.keys() - METHODS.keys(), key=means.__getitem__)
            yield Row(
                what=f"{best}, {workers} workers, {100 * share:g} % of the budget",
                ours=means[best], unit="mean rank", anchor=means[peer], peer=peer,
                most_ratio=1.0 if workers > 1 and share == 1.0 else None,
            )  # fmt: skip
