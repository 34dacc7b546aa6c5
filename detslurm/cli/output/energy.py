"""Energy and its CO2 as text and as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from detslurm.cli.output.tables import Column

if TYPE_CHECKING:
    from detslurm.sdk.costs.energy import EnergyUse
    from detslurm.sdk.parts import ExperimentRow, TrialRow

_NAMES: Final = {"nvml": "GPUs", "rapl": "CPUs", "slurm": "whole nodes by Slurm"}


def energy_text(one: EnergyUse) -> str:
    """Energy with its CO2 where that is known: `2.26 kWh (0.95 kg CO2)`."""
    co2 = "" if one.co2_kg is None else f" ({_amount(one.co2_kg, 'kg', 'g')} CO2)"
    # Slurm's figure has the energy of other jobs on the same nodes.
    bound = "at least " if one.at_least else "about " if "slurm" in one.sources else ""
    return f"{bound}{_amount(one.kwh, 'kWh', 'Wh')}{co2}"


def energy_parts(one: EnergyUse) -> str:
    """The same with its sources."""
    parts = (f"{_NAMES[name]} {_amount(n, 'kWh', 'Wh')}" for name, n in one.sources.items())
    return f"{energy_text(one)}: {', '.join(parts)}"


def energy_of(row: ExperimentRow | TrialRow) -> EnergyUse | None:
    """The energy of a row with its CO2; None if unknown."""
    if row.energy is None:
        return None
    from detslurm.sdk.costs.energy import EnergyUse  # lists have many rows without

    return EnergyUse.of(row.energy)


def energy_cells(row: ExperimentRow | TrialRow) -> dict[str, Any]:
    """The energy of a row as cells of a table in CSV."""
    columns = energy_columns(energy_of, drop=1)
    return {column.csv_header: column.csv(row) for column in columns}


def energy_columns(get: Callable[[Any], EnergyUse | None], *, drop: int) -> list[Column]:
    """The energy of a row: one column for people, three in CSV."""

    def of(part: Callable[[EnergyUse], Any]) -> Callable[[Any], Any]:
        def value(row: Any) -> Any:
            found = get(row)
            return None if found is None else part(found)

        return value

    kwh, co2 = of(lambda one: one.kwh), of(lambda one: one.co2_kg)
    bound = of(lambda one: one.at_least)
    return [
        Column("Energy", of(energy_text), drop=drop, csv_header="energy_kwh", csv_value=kwh),
        Column("CO2", co2, csv_only=True, csv_header="co2_kg"),
        Column("At Least", bound, csv_only=True, csv_header="energy_at_least"),
    ]


def _amount(value: float, unit: str, thousandth: str) -> str:
    return f"{1000 * value:.2f} {thousandth}" if 0 < value < 0.1 else f"{value:,.2f} {unit}"
