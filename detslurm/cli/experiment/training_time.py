"""The use of the time of trials, as a table and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from detslurm._base.quantities import counted
from detslurm.cli.output.human import human_time
from detslurm.cli.output.printing import Column, Table

if TYPE_CHECKING:
    from detslurm.sdk.costs.efficiency import Efficiency
    from detslurm.sdk.parts import Advice, TrainingTime

_LOST = {
    "queue": "queue",
    "start_slurm": "Slurm's start",
    "start_detslurm": "detslurm's start",
    "start_code": "the code's start",
    "save": "saves",
    "repeated": "training done again",
    "restart": "restarts",
    "idle": "idle",
}
"""The names of lost parts, in the order of the columns."""
_HEADERS = ("Queue", "Slurm", "detslurm", "Code", "Saves", "Again", "Restarts", "Idle")


def percent(ratio: float | None) -> str | None:
    """A ratio as a table shows it."""
    return None if ratio is None else f"{100 * ratio:.1f}"


def clock(seconds: float) -> str:
    """Seconds as a table shows them: 1:02:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def time_table(found: Sequence[Efficiency]) -> Table:
    """A row for each trial, with the seconds of each part of its time."""
    known = [(one.trial, one.training_time) for one in found if one.training_time is not None]
    lost = zip(_HEADERS, _LOST, strict=True)
    return Table(
        [
            Column("Trial ID", lambda row: row[0], csv_header="trial"),
            _seconds("Time", "since_start", lambda time: time.since_start),
            Column("ETTR %", lambda row: percent(row[1].ettr), csv_header="ettr",
                   csv_value=lambda row: row[1].ettr),
            _part("Training", "training"),
            _part("Validation", "validation"),
            *(_part(header, name) for header, name in lost),
            _part("Paused", "paused"),
        ],
        known,
        lambda: [{"trial": trial, **time.to_dict()} for trial, time in known],
    )  # fmt: skip


def _part(header: str, name: str) -> Column:
    return _seconds(header, name, lambda time: time.parts[name])


def _seconds(header: str, name: str, get: Callable[[TrainingTime], float | None]) -> Column:
    """Seconds as a clock for people, and as they are for programs."""

    def shown(row: tuple[int, TrainingTime]) -> str | None:
        found = get(row[1])
        return None if found is None else clock(found)

    return Column(header, shown, csv_header=name, csv_value=lambda row: get(row[1]))


def described(time: TrainingTime) -> Iterator[tuple[str, str]]:
    """The figures as the rows of a description."""
    if time.ettr is not None:
        whole = percent(time.ettr_submission)
        since = "" if whole is None else f", {whole} % since the submission"
        text = f"{percent(time.ettr)} % of {human_time(time.since_start)} since the start{since}"
        yield "Effective Training", text
    if lost := ", ".join(_lost(time)):
        yield "Lost Time", lost
    if validation := time.parts["validation"]:
        yield "Validation Time", human_time(validation)
    if (best := time.checkpoint) is not None and time.ettr_best is not None:
        yield "Best Save Interval", _advice(best, time.ettr_best)


def _advice(best: Advice, ratio: float) -> str:
    basis = f"{counted(best.failures, 'failure')}, saves of {human_time(best.save)}"
    return (
        f"{human_time(best.seconds)}, for about {percent(ratio)} % effective training ({basis};"
        f" now every {human_time(best.current)})"
    )


def _lost(time: TrainingTime) -> Iterator[str]:
    """The lost parts, the longest first."""
    known = [(seconds, name) for name in _LOST if (seconds := time.parts[name]) is not None]
    for seconds, name in sorted(known, reverse=True):
        if seconds >= 0.5 or seconds >= 0.005 * time.since_start:
            yield f"{_LOST[name]} {human_time(seconds)}"
