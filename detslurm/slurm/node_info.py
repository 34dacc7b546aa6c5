"""A node of a cluster, and its usage."""

from __future__ import annotations

from dataclasses import dataclass

# A node in any of these states, without any other flag than these, has usable free resources.
_IN_SERVICE = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset(
    {"CLOUD", "COMPLETING", "DYNAMIC_NORM", "PLANNED", "POWERED_DOWN", "POWERING_UP"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node of the cluster: what Determined calls an agent.

    Attributes:
        state: Slurm's word for its state, with flags, such as "IDLE" or "MIXED+DRAIN".
        reason: Why it is drained or down, in the administrator's words; "" if it is not.
        partitions: The partitions that it belongs to.
        features: Its features, which `slurm.constraint` may ask for.
        available_features: Those that it has, or could have after a change, as by a reboot.
        cpus_used: How many of them jobs hold.
        memory: The memory that jobs may have, in MiB; None if unknown.
        memory_used: How much of it jobs hold, in MiB; None if unknown.
        gpus_in_use: The indices of those; () where the site does not know them.
        gpu_types: The types of its GPUs, as far as they have names.
    """

    name: str
    state: str
    reason: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    available_features: tuple[str, ...] = ()
    cpus: int = 0
    cpus_used: int = 0
    memory: int | None = None
    memory_used: int | None = None
    gpus: int = 0
    gpus_used: int = 0
    gpus_in_use: tuple[int, ...] = ()
    gpu_types: tuple[str, ...] = ()

    @property
    def available(self) -> bool:
        """Whether jobs may start there, when something is free."""
        state, *flags = self.state.split("+")
        return state in _IN_SERVICE and _HARMLESS.issuperset(flags)

    @property
    def slots(self) -> int:
        """Its GPUs, or else its CPUs."""
        return self.gpus or self.cpus

    @property
    def slots_used(self) -> int:
        """Those of its slots that jobs hold."""
        return self.gpus_used if self.gpus else self.cpus_used

    @property
    def slots_free(self) -> int:
        """Those of its slots on which a job could start now."""
        return max(0, self.slots - self.slots_used) if self.available else 0
