"""The table at the end of `make test-gpu`: test, result, seconds, device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Row:
    """One test, after one or more of its set-up, call and tear-down."""

    test: str
    result: str
    seconds: float
    device: str

    def after(self, outcome: str, seconds: float, device: str) -> Row:
        """With one phase more: what did not pass stays."""
        result = outcome if self.result in ("", "passed") else self.result
        return replace(self, result=result, seconds=self.seconds + seconds, device=device)


def format_table(rows: Sequence[Row]) -> list[str]:
    """Its lines, the columns as wide as what is in them."""
    cells = [("test", "result", "seconds", "device")]
    cells += [(row.test, row.result, f"{row.seconds:.1f}", row.device) for row in rows]
    widths = [max(len(cell[column]) for cell in cells) for column in range(4)]
    return [
        "  ".join(
            text.rjust(width) if column == 2 else text.ljust(width)
            for column, (text, width) in enumerate(zip(cell, widths, strict=True))
        ).rstrip()
        for cell in cells
    ]
