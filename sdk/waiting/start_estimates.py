"""How good Slurm's estimates of starts have been here: each one is logged, then compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from detslurm.store import Store, StoreError, fs

if TYPE_CHECKING:
    from detslurm.slurm import JobInfo

FILE: Final = "start-estimates.json"
KEPT: Final = 500
_FORGOTTEN: Final = 30 * 86400.0  # jobs that left the queue unseen, and no run of ours is known


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """One estimate: of which job, made when, for when, and when that job really started, in unix
    seconds."""

    cluster: str
    ref: str
    submitted: float | None
    made: float
    expected: float
    trial: tuple[int, int] | None = None  # the experiment and its trial, of a job of ours
    started: float | None = None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How far the first estimates of jobs were off.

    Attributes:
        jobs: How many jobs have started since an estimate was given for them.
        median_error: The median of how far it was off, in seconds.
        late: How many of the jobs started later than estimated.
    """

    jobs: int
    median_error: float
    late: int


def accuracy(estimates: Iterable[Estimate]) -> Accuracy | None:
    """How good the estimates were; None if no such job has started. Only the first of a job counts:
    the later ones were easier."""
    first: dict[tuple[str, str, float | None], Estimate] = {}
    for one in sorted(estimates, key=lambda one: one.made):
        if one.started is not None:
            first.setdefault((one.cluster, one.ref, one.submitted), one)
    errors = [one.started - one.expected for one in first.values() if one.started is not None]
    if not errors:
        return None
    late = sum(error > 0 for error in errors)
    return Accuracy(len(errors), statistics.median(map(abs, errors)), late)


def settled(
    estimates: Iterable[Estimate],
    cluster: str,
    queue: Iterable[JobInfo],
    start_of: Callable[[Estimate], float | None],
) -> list[Estimate]:
    """The estimates with the starts that are known by now: by the `queue`, all jobs of the
    `cluster`, else by the store: `start_of` finds the start of a job that has left the queue, None
    if unknown."""
    rows = {ref: row for row in queue for ref in row.refs}
    found = []
    for one in estimates:
        started, row = None, rows.get(one.ref)
        if one.started is None and one.cluster == cluster:
            if row is None:
                started = start_of(one)
            elif row.submitted == one.submitted:  # else another job of the same id
                started = row.started
        # A run before the estimate has nothing to do with it.
        if started is not None and started >= one.made:
            one = msgspec.structs.replace(one, started=started)
        found.append(one)
    return found


def start_in_store(store: Store, one: Estimate) -> float | None:
    """When a run of the trial began in that job, by the store."""
    from detslurm.store import fold_facts, view_trial

    if one.trial is None:
        return None
    experiment, trial = one.trial
    try:
        directory = store.experiment(experiment)
        view = view_trial(directory.trial(trial), fold_facts(directory).context(trial), {})
    except StoreError:
        return None
    times = [run.started for run in view.runs if run.job.ref == one.ref]
    return min((t for t in times if t is not None and t >= one.made), default=None)


def load(store: Store) -> list[Estimate]:
    """The logged estimates; none where they can't be read."""
    try:
        data = fs.read_file(store.own(FILE))
        return msgspec.json.decode(data or b"[]", type=list[Estimate])
    except (StoreError, ValueError):
        return []


def save(store: Store, estimates: Sequence[Estimate], now: float) -> None:
    """Keep the newest of them; without a store, or the right to write, none."""
    if not fs.exists(store.path / "experiments", expected=True):
        return
    useful = [one for one in estimates if one.started or now - one.made < _FORGOTTEN]
    try:
        data = msgspec.json.encode(useful[-KEPT:])
        fs.replace_file(store.own(FILE), data, sync=False, secret=True)
    except StoreError:
        pass  # a figure less
