"""The energy of runs, trials and experiments: sums with a mark where a part is unknown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec

SOURCES: Final = ("nvml", "rapl")
"""GPUs by NVIDIA's driver, CPU packages by the kernel. No joule is in both."""
SLURM: Final = "slurm"
"""The nodes of jobs by Slurm's accounting: never in one sum of a trial with the others."""


class SourceEnergy(msgspec.Struct, frozen=True):
    """The energy of a run by one source."""

    joules: float = 0.0  # the sum of its nodes
    # The nodes of which all devices were read from the beginning of the code to its end.
    nodes: int = 0

    def after(self, joules: float, *, ended: bool) -> SourceEnergy:
        """With one more sample of one node, its last if it has `ended`."""
        return SourceEnergy(round(self.joules + joules, 2), self.nodes + ended)


class Energy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A sum of energy.

    Attributes:
        joules: The known energy by source.
        at_least: Whether some of it is unknown, so that the sum is a lower bound.
    """

    joules: dict[str, float]
    at_least: bool = False

    @property
    def total(self) -> float:
        """The joules of all sources."""
        return sum(self.joules.values())

    @classmethod
    def of_run(cls, sources: Mapping[str, SourceEnergy], nodes: int) -> Self | None:
        """The energy of a run on so many nodes; None if unknown."""
        if not sources:
            return None
        joules = {source: one.joules for source, one in sources.items()}
        return cls(joules, any(one.nodes < nodes for one in sources.values()))

    @classmethod
    def sum(cls, several: Iterable[Self | None]) -> Self | None:
        """The sum of several, of which None is unknown; None if all are."""
        parts = list(several)
        known = [one for one in parts if one is not None]
        if not known:
            return None
        joules: dict[str, float] = {}
        for one in known:
            for source, found in one.joules.items():
                joules[source] = joules.get(source, 0.0) + found
        return cls(joules, len(known) < len(parts) or any(one.at_least for one in known))
