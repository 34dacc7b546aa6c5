"""The use that trials made of their resources, as a table and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from detslurm.cli.arguments.ids import client, experiment_id
from detslurm.cli.experiment import training_time
from detslurm.cli.experiment.training_time import clock
from detslurm.cli.output.energy import energy_columns, energy_parts
from detslurm.cli.output.human import human_time, size
from detslurm.cli.output.printing import Column, Table, note, shows
from detslurm.sdk.costs.efficiency import total_time

if TYPE_CHECKING:
    from detslurm.sdk.costs.efficiency import Efficiency

_PERCENT = ("memory_percent", "cpu_percent")


@click.command()
@experiment_id
@click.option("--time", "by_time", is_flag=True, help="Show the parts of each trial's time.")
@shows
def efficiency(experiment_id: int, by_time: bool) -> Table:
    """Show for each trial how busy its GPUs and CPUs were, its memory, and the time it waited.

    GPU % is the average, P10 what a tenth of the time did not exceed. Memory is the peak on one
    node and its part of what the trial has there. CPUs are those kept busy on average, of those
    that the trial has. Wasted are slot-hours in which slots were idle or trained what a later run
    trained again. An unavailable figure stays empty: that is not 0.

    ETTR is the effective training time ratio: training and validation that were not done again, in
    percent of all time since the first start, without pauses. The sum of all trials goes to stderr,
    with the causes of lost time, and the interval between saves that would have been best.

    \b
    Examples:
      detslurm experiment efficiency 7
      detslurm experiment efficiency 7 --time
      detslurm experiment efficiency 7 --json
    """
    found = client().experiment(experiment_id).efficiency()
    if not found:
        note(f"No trial of experiment {experiment_id} has begun.")
    if (total := total_time(found)) is not None:
        for name, text in training_time.described(total):
            note(f"{name}: {text}")
    if by_time:
        return training_time.time_table(found)
    return Table(_COLUMNS, found, lambda: [as_data(one) for one in found])


def as_data(one: Efficiency) -> dict[str, Any]:
    """The figures of a trial for JSON."""
    time = None if one.training_time is None else one.training_time.to_dict()
    percent = {name: getattr(one, name) for name in _PERCENT}
    return {**msgspec.structs.asdict(one), "training_time": time, **percent}


def _figure(
    header: str, name: str, text: Callable[[float], str], csv_header: str = "", *, drop: int = 0
) -> Column:
    """A figure in short for people, and as it is for programs."""
    figure = attrgetter(name)

    def shown(row: Any) -> str | None:
        found = figure(row)
        return None if found is None else text(found)

    return Column(header, shown, drop=drop, csv_header=csv_header or name, csv_value=figure)


def cpus_text(one: Efficiency) -> str:
    """The CPUs that were busy, of those that there are."""
    if one.cpus_used is None:
        return ""
    used = f"{one.cpus_used:.1f}"
    return used if one.cpus_requested is None else f"{used} of {one.cpus_requested}"


def memory_text(one: Efficiency) -> str:
    """The memory peak, of what there is on a node."""
    if one.memory_peak is None:
        return ""
    peak = size(one.memory_peak)
    return peak if one.memory_requested is None else f"{peak} of {size(one.memory_requested)}"


_COLUMNS = [
    Column("Trial ID", lambda row: row.trial, csv_header="trial"),
    Column("State", lambda row: row.state, "state", drop=5),
    _figure("GPU %", "gpu_percent", "{:.0f}".format),
    _figure("P10", "gpu_percent_p10", "{:.0f}".format, drop=3),
    Column("GPU Memory", lambda row: row.gpu_memory_peak, "size", drop=4),
    Column("Memory", lambda row: row.memory_peak, "size", csv_header="memory_peak"),
    _figure("Mem %", "memory_percent", "{:.0f}".format),
    _figure("CPUs", "cpus_used", "{:.1f}".format),
    _figure("CPU %", "cpu_percent", "{:.0f}".format),
    _figure("Elapsed", "elapsed", clock, "Elapsed", drop=2),
    _figure("Queued", "queue_time", clock, "Queued", drop=1),
    _figure("ETTR %", "ettr", lambda ratio: f"{100 * ratio:.1f}"),
    Column("Steps Lost", lambda row: row.steps_lost, drop=6),
    _figure("Slot-h", "slot_hours", "{:.2f}".format),
    _figure("Wasted", "slot_hours_wasted", "{:.2f}".format),
    *energy_columns(attrgetter("energy"), drop=7),
]


def described(one: Efficiency) -> Iterator[tuple[str, Any]]:
    """The figures as the rows of a description."""
    yield "Elapsed", None if one.elapsed is None else human_time(one.elapsed)
    yield "Queue Time", None if one.queue_time is None else human_time(one.queue_time)
    yield "Nodes", one.nodes
    yield "Memory Peak", memory_text(one)
    yield "CPUs Used", cpus_text(one)
    if one.gpu_percent is not None:
        p10 = one.gpu_percent_p10
        yield "GPU", f"{one.gpu_percent:.0f} % (10 % of the time at most {p10:.0f} %)"
    yield "GPU Memory Peak", None if one.gpu_memory_peak is None else size(one.gpu_memory_peak)
    yield "Batches Lost", one.steps_lost or None
    if one.slot_hours is not None:
        wasted = one.slot_hours_wasted
        lost = "" if wasted is None else f" ({wasted:.2f} wasted)"
        yield "Slot-Hours", f"{one.slot_hours:.2f}{lost}"
    yield "Energy", None if one.energy is None else energy_parts(one.energy)
    if one.training_time is not None:
        yield from training_time.described(one.training_time)
