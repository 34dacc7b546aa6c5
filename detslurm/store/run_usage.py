"""The usage of a run: CPU time, memory and GPUs, added up over its nodes.

The runner adds up the samples of the node agents. While the run goes on they are in a file of its
own, at the end in the end record. An unreadable figure is None: unavailable is not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from detslurm.store import fs, rebuildable
from detslurm.store.energy import SOURCES, Energy, SourceEnergy
from detslurm.store.errors import StoreError
from detslurm.store.frame import frame

if TYPE_CHECKING:
    from detslurm.store.trial import TrialDir

# Processes that wait use a little, to look whether it is over: so much of one CPU for each slot.
_IDLE_CPUS: Final = 0.05
_MOST_IDLE_CPUS: Final = 0.2
_POINTS: Final = 64
# Samples of the nodes that come within so many seconds belong together.
_ROUND: Final = 7.5


class Requested(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The resources of a run."""

    nodes: int = 1  # the number of its nodes
    slots: int = 0  # the slots of all its nodes
    # The CPUs of all its nodes; None where there is no limit, or none is known.
    cpus: int | None = None
    memory: int | None = None  # the bytes of memory on one node; None as for `cpus`


class UsagePoint(msgspec.Struct, frozen=True, array_like=True):
    """The usage of all nodes in a part of a run."""

    end: float  # the end of the part, in seconds since the run was first observed
    node_seconds: float  # its length, added up over the nodes
    cpu_seconds: float = 0.0  # the CPU time of all processes
    memory: int = 0  # their most bytes on one node at once
    gpu_percent: float | None = None  # how busy the GPUs were, on average; None if unavailable

    def merged(self, other: UsagePoint) -> UsagePoint:
        """Both as one part."""
        known = [one for one in (self, other) if one.gpu_percent is not None]
        weight = sum(one.node_seconds for one in known)
        percents = sum((one.gpu_percent or 0.0) * one.node_seconds for one in known)
        return UsagePoint(
            end=max(self.end, other.end),
            node_seconds=round(self.node_seconds + other.node_seconds, 2),
            cpu_seconds=round(self.cpu_seconds + other.cpu_seconds, 2),
            memory=max(self.memory, other.memory),
            gpu_percent=round(percents / weight, 1) if weight else None,
        )


def thinned(points: list[UsagePoint]) -> list[UsagePoint]:
    """At most `_POINTS` of them: beyond that each pair of the older half is merged."""
    if len(points) <= _POINTS:
        return points
    older = points[: len(points) // 4 * 2]
    pairs = zip(older[::2], older[1::2], strict=True)
    return [*(one.merged(next_one) for one, next_one in pairs), *points[len(older) :]]


class RunUsage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The usage of a run since it began.

    Attributes:
        requested: Its resources.
        time: The time of the newest sample, in seconds since 1970.
        node_seconds: The seconds for which its nodes were observed, added up.
        cpu_seconds: The CPU time of its processes; None if unavailable.
        memory_peak: The most bytes of its processes on one node at once; None if unavailable.
        slot_seconds: The seconds in which it is known whether a slot was idle, added up.
        idle_slot_seconds: The seconds in which slots were idle: a GPU that computes nothing, or a
            node without GPUs whose processes do nothing.
        gpu_seconds: The seconds in which GPUs were busy to that percentage; empty if unavailable.
        gpu_memory_peak: The most bytes on one GPU; None if unavailable.
        begun: When it was first observed, in seconds since 1970.
        history: The usage over time: the latest samples, and the coarser the older.
        energy: The energy of its devices by source, see `detslurm.store.energy`.
    """

    requested: Requested = Requested()
    time: float | None = None
    node_seconds: float = 0.0
    cpu_seconds: float | None = None
    memory_peak: int | None = None
    slot_seconds: float = 0.0
    idle_slot_seconds: float = 0.0
    gpu_seconds: dict[int, float] = msgspec.field(default_factory=dict)
    gpu_memory_peak: int | None = None
    begun: float | None = None
    history: list[UsagePoint] = msgspec.field(default_factory=list)
    energy: dict[str, SourceEnergy] = msgspec.field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """For how long the run was observed."""
        return self.node_seconds / self.requested.nodes

    def add(self, sample: Mapping[str, Any], now: float) -> None:
        """Take in a sample of one node."""
        seconds = float(sample["seconds"])
        self.time = now
        self.node_seconds += seconds
        if "cpu" in sample:
            self.cpu_seconds = (self.cpu_seconds or 0.0) + float(sample["cpu"])
        self.memory_peak = _most(self.memory_peak, sample.get("resident"))
        for gpu in sample.get("gpus") or ():
            self.gpu_memory_peak = _most(self.gpu_memory_peak, gpu.get("memory"))
            if (percent := gpu.get("percent")) is not None:
                spent = self.gpu_seconds.get(int(percent), 0.0)
                self.gpu_seconds[int(percent)] = spent + seconds
        self._add_energy(sample)
        self._add_idle(sample, seconds)
        self._add_to_history(sample, seconds, now)

    def _add_energy(self, sample: Mapping[str, Any]) -> None:
        joules, ended = sample.get("energy") or {}, sample.get("metered") or ()
        for source in SOURCES:
            if source in joules:
                known = self.energy.get(source, SourceEnergy())
                self.energy[source] = known.after(float(joules[source]), ended=source in ended)

    def _add_to_history(self, sample: Mapping[str, Any], seconds: float, now: float) -> None:
        if self.begun is None:
            self.begun = now - seconds
        percents = [gpu["percent"] for gpu in sample.get("gpus") or () if "percent" in gpu]
        point = UsagePoint(
            end=round(now - self.begun, 1),
            node_seconds=round(seconds, 2),
            cpu_seconds=round(float(sample.get("cpu") or 0.0), 2),
            memory=int(sample.get("resident") or 0),
            gpu_percent=sum(percents) / len(percents) if percents else None,
        )
        if self.history and point.end < self.history[-1].end + _ROUND:
            first = self.history.pop()
            # Its end stays: of a thousand nodes there is always one more.
            point = msgspec.structs.replace(first.merged(point), end=first.end)
        self.history = thinned([*self.history, point])

    def _add_idle(self, sample: Mapping[str, Any], seconds: float) -> None:
        if self.gpu_seconds:
            self.slot_seconds = sum(self.gpu_seconds.values())
            self.idle_slot_seconds = self.gpu_seconds.get(0, 0.0)
        elif "gpus" not in sample and "cpu" in sample and not sample.get("last"):
            slots = self.requested.slots / self.requested.nodes
            self.slot_seconds += seconds * slots
            self.idle_slot_seconds += seconds * slots if is_idle(sample, slots) else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As plain data, with seconds to a hundredth."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return {n: round(v, 2) if isinstance(v, float) else v for n, v in plain.items()}


def energy_of(runs: Iterable[RunUsage | None]) -> Energy | None:
    """The energy of several runs, of which None was not observed; None if unknown."""
    return Energy.sum(
        None if one is None else Energy.of_run(one.energy, one.requested.nodes) for one in runs
    )


def is_idle(sample: Mapping[str, Any], slots: float) -> bool | None:
    """Whether a node with so many slots did nothing at all; None where that can't be known."""
    if (cpu := sample.get("cpu")) is None:
        return None
    most = min(_IDLE_CPUS * max(slots, 1), _MOST_IDLE_CPUS) * sample["seconds"]
    if cpu + sample.get("hidden", 0.0) >= most:
        return False
    percents = [gpu.get("percent") for gpu in sample.get("gpus") or ()]
    if any(percents):
        return False
    # A process that others keep from the CPUs may want to do anything.
    return None if None in percents or sample.get("starved") else True


def _most(known: int | None, value: int | None) -> int | None:
    return known if value is None else max(value, known or 0)


def parse_usage(plain: Any) -> RunUsage | None:
    """The usage that `RunUsage.to_dict` wrote; None for anything else."""
    try:
        return None if plain is None else msgspec.convert(plain, RunUsage, strict=False)
    except msgspec.ValidationError:
        return None


def keep_usage(trial: TrialDir, run: int, usage: RunUsage) -> None:
    """Let readers see the usage of a run so far; a failure costs them that alone."""
    with suppress(StoreError):
        fs.replace_file(trial.usage_path(run), frame(usage.to_dict()), sync=False)


def read_usage(trial: TrialDir, run: int) -> RunUsage | None:
    """The usage of a run as its runner wrote it last; None if unknown."""
    return rebuildable.load(trial.usage_path(run), RunUsage)
