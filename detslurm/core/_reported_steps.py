"""Which metrics were reported at which steps: little memory, for steps mostly count evenly."""

from __future__ import annotations

from collections.abc import Set as AbstractSet


class _Run:
    """Steps that count evenly, `stride` apart; 0 while there is but one."""

    __slots__ = ("first", "last", "stride")

    def __init__(self, step: int) -> None:
        self.first = self.last = step
        self.stride = 0

    def __contains__(self, step: int) -> bool:
        within = self.first <= step <= self.last
        return within and (step - self.first) % (self.stride or 1) == 0


class ReportedSteps:
    """The steps of one group's reports, by the names of the metrics that were reported there."""

    def __init__(self) -> None:
        self._runs: dict[frozenset[str], list[_Run]] = {}
        self._highest: float = float("-inf")
        # Of the last report: most have the same names, and looking those up would take the longest.
        self._names: frozenset[str] = frozenset()
        self._run: _Run | None = None

    def repeated(self, step: int, names: AbstractSet[str]) -> list[str]:
        """The metrics among `names` that were reported at this step before, sorted."""
        if step > self._highest:
            return []
        found = (known for known, runs in self._runs.items() if any(step in run for run in runs))
        return sorted({name for known in found for name in known & names})

    def add(self, step: int, names: AbstractSet[str]) -> None:
        """Note a report."""
        run = self._run
        if run is None or names != self._names:
            self._names = frozenset(names)
            runs = self._runs.get(self._names)
            run = self._run = None if runs is None else runs[-1]
        if run is not None and step == run.last + run.stride:
            run.last = step
        elif run is not None and run.stride == 0 and step > run.last:
            run.last, run.stride = step, step - run.last
        else:
            self._run = _Run(step)
            self._runs.setdefault(self._names, []).append(self._run)
        if step > self._highest:
            self._highest = step
