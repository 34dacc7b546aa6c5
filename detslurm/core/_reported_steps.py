"""The steps of each reported metric, in little memory: steps mostly count evenly."""

from __future__ import annotations

from collections.abc import Set as AbstractSet


class _StepRange:
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
        self._ranges: dict[frozenset[str], list[_StepRange]] = {}
        self.highest: float = float("-inf")
        # Of the last report: most have the same names, and looking those up would take the longest.
        self._names: frozenset[str] = frozenset()
        self._last: _StepRange | None = None

    def repeated(self, step: int, names: AbstractSet[str]) -> list[str]:
        """The metrics among `names` that were reported at this step before, sorted."""
        if step > self.highest:
            return []
        known = (of for of, ranges in self._ranges.items() if any(step in one for one in ranges))
        return sorted({name for of in known for name in of & names})

    def add(self, step: int, names: AbstractSet[str]) -> None:
        """Note a report."""
        last = self._last
        if last is None or names != self._names:
            self._names = frozenset(names)
            ranges = self._ranges.get(self._names)
            last = self._last = None if ranges is None else ranges[-1]
        if last is not None and step == last.last + last.stride:
            last.last = step
        elif last is not None and last.stride == 0 and step > last.last:
            last.last, last.stride = step, step - last.last
        else:
            self._last = _StepRange(step)
            self._ranges.setdefault(self._names, []).append(self._last)
        if step > self.highest:
            self.highest = step
