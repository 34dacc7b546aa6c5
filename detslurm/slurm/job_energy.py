"""The energy of jobs by Slurm's accounting, where the site gathers it (`acct_gather_energy`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from detslurm.slurm.history import sacct_for_jobs
from detslurm.slurm.queue import parse_number, parse_time

_UNSET: Final = 1 << 63  # Slurm's own marks of no value are above


def energy_command(refs: Collection[str], since: float | None) -> list[str]:
    """One sacct for the steps of all jobs, those before a requeue among them."""
    fields = "--format=JobID,Start,End,ConsumedEnergyRaw"
    return [*sacct_for_jobs(refs, since), "--duplicates", fields]


def parse_energy(text: str) -> dict[str, float]:
    """Ref -> joules of each job with a known energy in sacct's output.

    A step has the energy of its nodes while it lasts. So the batch script's own step and steps
    within a step are left out. Slurm prints 0 where it measures nothing.
    """
    steps = defaultdict[str, list[tuple[float, float, int]]](list)
    for line in text.splitlines():
        job, *fields = line.split("|")
        ref, _, step = job.partition(".")
        if len(fields) == 3 and step.isdigit():
            start, end = parse_time(fields[0]), parse_time(fields[1])
            joules = parse_number(fields[2])
            if start is not None and end is not None and joules is not None:
                steps[ref].append((start, -end, joules if joules < _UNSET else 0))
    found = {ref: _joules(sorted(own)) for ref, own in steps.items()}
    return {ref: joules for ref, joules in found.items() if joules}


def _joules(steps: list[tuple[float, float, int]]) -> float:
    """The sum of steps that don't overlap; of two steps that overlap the longer step counts."""
    total = until = 0.0
    for start, minus_end, joules in steps:
        if start >= until:
            total, until = total + joules, -minus_end
    return total
