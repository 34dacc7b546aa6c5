"""A note for users who ask again for far more than their last trials used. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from detslurm.store import UsedResources

_GIGABYTE: Final = 1 << 30
# Worth a note: less than half was used, and so much or more was not.
_PART: Final = 0.5
_MEMORY: Final = 2.0 * _GIGABYTE
_CPUS: Final = 1.0


def unused_note(
    used: UsedResources, config: Mapping[str, Any], *, cpu_slots: bool = False
) -> str | None:
    """The requested resources that the last trials left unused; None if few. Resources that Slurm
    gives unasked, such as whole nodes, don't count."""
    parts = list(_parts(used, config, cpu_slots=cpu_slots))
    return f"trials of experiment {used.experiment} used {' and '.join(parts)}" if parts else None


def _parts(used: UsedResources, config: Mapping[str, Any], *, cpu_slots: bool) -> Iterator[str]:
    options = (config.get("slurm") or {}).get("sbatch_args") or ()
    slots = (config.get("resources") or {}).get("slots_per_trial") or 0
    if _names(options, "--mem") and _is_far_less(used.memory_peak, used.memory, _MEMORY):
        peak, memory = (used.memory_peak or 0) / _GIGABYTE, (used.memory or 0) / _GIGABYTE
        yield f"{peak:.2g} of {memory:.3g} GB of memory"
    asked = (cpu_slots and slots > 1) or _names(options, "--cpus-per", "-c")
    if asked and _is_far_less(used.cpus_used, used.cpus, _CPUS):
        yield f"{used.cpus_used:.2g} of {used.cpus} CPUs"


def _is_far_less(used: float | None, whole: float | None, least: float) -> bool:
    if used is None or whole is None:
        return False
    return used < _PART * whole and whole - used >= least


def _names(options: Sequence[str], *beginnings: str) -> bool:
    return any(option.startswith(beginnings) for option in options)
