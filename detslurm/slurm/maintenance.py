"""Whether jobs wait for the end of a maintenance, and which shorter time would start before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.pending import RESERVATIONS, parse_reservations, parse_test
from detslurm.slurm.pending_details import MAINTENANCE, ReservedNodes

_SOON = 300.0  # seconds: jobs that start so soon wait for no maintenance
_PATIENCE = 10.0


def maintenance_before(
    reservations: Iterable[ReservedNodes], start: float, now: float
) -> ReservedNodes | None:
    """The next maintenance that has not begun and is over when a job starts."""
    ahead = [r for r in reservations if r.users == MAINTENANCE and now < r.start < r.end <= start]
    return min(ahead, key=lambda one: one.start, default=None)


def maintenance_warning(
    answer: str, test: Callable[[str], str], nodes: Collection[str] = ()
) -> str | None:
    """A warning where a job starts after a maintenance, and would start before with less time.

    `answer` is that of `sbatch --test-only`; `test` asks again, with another option. `nodes` are
    those of its partition, if they are known. Reservations are queried only where the job is
    expected to start later than in minutes.
    """
    now = time.time()
    try:
        start = parse_test(answer)
        if start < now + _SOON:
            return None
        shown = command.run(RESERVATIONS, patience=0, within=_PATIENCE)
        known = parse_reservations(shown)
        here = [r for r in known if not (r.nodes and nodes and set(nodes).isdisjoint(r.nodes))]
        found = maintenance_before(here, start, now)
        minutes = 0 if found is None else int(found.start - now) // 60 - 1
        if found is None or minutes < 1:
            return None
        sooner = parse_test(test(f"--time={minutes}"))
    except SlurmError:
        return None  # a site may show neither; the jobs are queued all the same
    return maintenance_text(found, start, minutes, sooner)


def maintenance_text(found: ReservedNodes, start: float, minutes: int, sooner: float) -> str | None:
    """The warning; None where less time would not help."""
    if sooner >= found.start:
        return None
    return (
        f"the maintenance {found.name} begins at {_clock(found.start)}: with slurm.time:"
        f" {minutes // 60}:{minutes % 60:02}:00 the jobs could start before it, at"
        f" {_clock(sooner)}; with their time limit they are expected to start at {_clock(start)}"
    )


def _clock(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
