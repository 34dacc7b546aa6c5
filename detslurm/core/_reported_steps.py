"""Which metrics were reported at which steps: little memory, for steps mostly count evenly."""

from __future__ import annotations

from collections.abc import Set as AbstractSet


class ReportedSteps:
    """The steps of one group's reports, by the names of the metrics that were reported there."""

    def __init__(self) -> None:
        self._runs: dict[frozenset[str], list[range]] = {}
        self._highest: int | None = None

    def repeated(self, step: int, names: AbstractSet[str]) -> list[str]:
        """The metrics among `names` that were reported at this step before, sorted."""
        if self._highest is None or step > self._highest:
            return []
        found = (known for known, runs in self._runs.items() if any(step in run for run in runs))
        return sorted({name for known in found for name in known & names})

    def add(self, step: int, names: AbstractSet[str]) -> None:
        """Note a report."""
        runs = self._runs.setdefault(frozenset(names), [])
        last = runs[-1] if runs else range(0)
        if len(last) == 1 and step > last.start:
            runs[-1] = range(last.start, step + 1, step - last.start)
        elif len(last) > 1 and step == last[-1] + last.step:
            runs[-1] = range(last.start, step + 1, last.step)
        else:
            runs.append(range(step, step + 1))
        self._highest = step if self._highest is None else max(step, self._highest)
