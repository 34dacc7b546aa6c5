"""The energy of a run on this node: the counters of its GPUs (NVML) and of its CPUs (RAPL).

A counter that can't be read is left out: unknown is not zero.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from detslurm._base.nvml import Nvml
from detslurm.slurm.hostlist import counts_by_node

POWERCAP: Final = Path("/sys/class/powercap")
# Each joule once: `intel-rapl:0:0` is a part of a package, `intel-rapl-mmio:0` is a package again,
# and a zone named "psys" has the packages as parts. AMD's processors have the same names.
_ZONE: Final = re.compile(r"intel-rapl:\d+")
_PACKAGE: Final = "package"


def joules_between(
    before: float | None, after: float | None, span: float | None = None
) -> float | None:
    """The joules between two readings of a counter, which begins again at 0 after `span` joules.

    None if unknown; a counter without a span never begins again.
    """
    if before is None or after is None:
        return None
    if after >= before:
        return after - before
    return None if span is None else max(span - before, 0.0) + after


class EnergyCounter:
    """The counter of one device: `read` returns its joules, None if it can't be read now."""

    def __init__(self, read: Callable[[], float | None], span: float | None = None) -> None:
        self._read, self._span = read, span
        self.reading = read()

    def advance(self) -> float | None:
        """The joules since the reading before; None if unknown."""
        before, self.reading = self.reading, self._read()
        return joules_between(before, self.reading, self._span)


class EnergyMeter:
    """The counters of a node's devices by source, read first when they are made.

    `complete` has the sources of which each reading of each device is known so far.
    """

    def __init__(self, counters: Mapping[str, Sequence[EnergyCounter]]) -> None:
        self._counters = counters
        self.complete = {source for source, own in counters.items() if own}

    def advance(self) -> dict[str, float]:
        """The joules since the call before, by source, of the counters that can be read."""
        found = {}
        for source, counters in self._counters.items():
            gains = [one.advance() for one in counters]
            known = [one for one in gains if one is not None]
            if len(known) < len(gains):
                self.complete.discard(source)
            if known:
                found[source] = round(sum(known), 3)
        return found


def package_counters(root: Path) -> list[EnergyCounter]:
    """The counters of the CPU packages below the directory of `powercap`."""
    names: list[str] = []
    with suppress(OSError):
        names = sorted(filter(_ZONE.fullmatch, os.listdir(root)))  # noqa: PTH208 (an EIO is caught)
    zones = [root / n for n in names if _text(root / n / "name").startswith(_PACKAGE)]
    return [
        EnergyCounter(partial(_joules, z / "energy_uj"), _joules(z / "max_energy_range_uj"))
        for z in zones
    ]


def gpu_counter(nvml: Nvml, name: str, is_own: Callable[[Nvml, Any], bool]) -> EnergyCounter:
    """The counter of a GPU; it can't be read while `is_own` is false for the GPU's handle."""

    def read() -> float | None:
        gpu = nvml.gpu(name)
        return nvml.joules(gpu) if gpu is not None and is_own(nvml, gpu) else None

    return EnergyCounter(read)


def has_whole_nodes(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the job has all logical CPUs of its nodes, by the environment of its step."""
    env = os.environ if environ is None else environ
    cpus = counts_by_node(env.get("SLURM_JOB_CPUS_PER_NODE", ""))
    # Python's own count can be changed by its environment.
    return bool(cpus) and min(cpus) >= os.sysconf("SC_NPROCESSORS_ONLN")


def _joules(path: Path) -> float | None:
    text = _text(path)
    return int(text) / 1e6 if text.isdigit() else None


def _text(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text().strip()
    return ""
