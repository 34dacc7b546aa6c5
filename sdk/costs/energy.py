"""Energy in kWh, and its CO2 by the site profile."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self

import msgspec

from detslurm.store import Energy

if TYPE_CHECKING:
    from detslurm.config.schema.site import SiteEnergy

_JOULES: Final = 3.6e6  # of a kWh
# Seconds: each of ten thousand rows asks for the profile, and a server lives for weeks.
_READ_AGAIN: Final = 10.0


class EnergyUse(msgspec.Struct, frozen=True, kw_only=True):
    """The energy of a trial, or of a group of experiments.

    Attributes:
        co2_kg: The kilograms of CO2 by `energy` of the site profile; None without a factor.
        at_least: Whether both figures are lower bounds, because a part is unknown.
        sources: The kWh by source: "nvml" for GPUs, "rapl" for CPUs; or "slurm" alone for nodes.
    """

    kwh: float
    co2_kg: float | None = None
    at_least: bool = False
    sources: dict[str, float]

    @classmethod
    def of(cls, energy: Energy | None) -> Self | None:
        """A sum of the store with its CO2; None stays unknown."""
        if energy is None:
            return None
        kwh = energy.total / _JOULES
        return cls(
            kwh=kwh,
            co2_kg=co2_kg(kwh, site_energy()),
            at_least=energy.at_least,
            sources={source: joules / _JOULES for source, joules in energy.joules.items()},
        )


def co2_kg(kwh: float, site: SiteEnergy | None) -> float | None:
    """The kilograms of CO2 of energy at a site; None where its factor is unknown."""
    if site is None or site.co2_g_per_kwh is None:
        return None
    return kwh * site.pue * site.co2_g_per_kwh / 1000


def site_energy() -> SiteEnergy | None:
    """`energy` of the site profile; None without a profile."""
    return _read(int(time.monotonic() / _READ_AGAIN))


@lru_cache(maxsize=1)
def _read(_moment: int) -> SiteEnergy | None:
    from detslurm.config.errors import ConfigErrors
    from detslurm.config.site import load_site, profile_path

    try:
        profile = profile_path()
        # YAML and the schema of configurations are imported where it matters only.
        if profile is None or b"energy" not in profile.read_bytes():
            return None
        return load_site(profile).energy
    except (ConfigErrors, OSError):
        return None  # other readers of the profile report the error
