"""Run a comparison, and write its tables and picture: python -m benchmarks.quality [--long]."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peers import REPOSITORY
from benchmarks.quality.comparison import WORKERS, Comparison, chosen, markdown, run_all
from benchmarks.quality.contenders import METHODS
from benchmarks.quality.picture import drawn
from benchmarks.quality.session import Results

PAGE = REPOSITORY / "docs" / "quality.md"
PICTURE = REPOSITORY / "docs" / "quality.svg"
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def write(comparison: Comparison, results: Results, page: Path, picture: Path) -> None:
    """Put the tables between the marks of the page, and draw the picture."""
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    tables = "\n".join(markdown(comparison, results))
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}")
    panels = {
        f"{workers} worker{'s' * (workers > 1)}": comparison.lines(results, workers)
        for workers in WORKERS
    }
    picture.write_text("\n".join(drawn(panels, tuple(METHODS))) + "\n")


def main() -> int:
    """Run, write, and print the tables."""
    comparison = chosen()
    results = run_all(comparison)
    write(comparison, results, PAGE, PICTURE)
    print(*markdown(comparison, results), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
