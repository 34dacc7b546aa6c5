"""The tables of `detslurm top`: rows of text, by the key of each row."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from detslurm._base.quantities import human_size, number
from detslurm._base.states import FINISHED
from detslurm.look.plot import progress_bar
from detslurm.sdk.experiments.ordering import differing
from detslurm.sdk.experiments.pareto import ParetoStatus, pareto_statuses
from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
from detslurm.sdk.jobs.job import Job
from detslurm.slurm.reasons import reason_of
from detslurm.store import CheckpointView, ExperimentRow, TrialRow, flat

Rows = dict[str, tuple[str, ...]]

EXPERIMENTS = ("ID", "State", "Progress", "Trials", "Best", "Name")
TRIALS = ("Trial", "State", "Batches", "Best", "H-Params", "Job", "Restarts")
CHECKPOINTS = ("Checkpoint", "Batches", "Metric", "Size", "State", "Saved")
QUEUE = ("#", "Job", "State", "Slots", "User", "Reason", "Experiment", "Name")


def one_line(value: Any) -> str:
    """A value as one line; what others have named can't move the cursor."""
    return "".join(c if c.isprintable() else "?" for c in number(value))


def experiment_rows(rows: Iterable[ExperimentRow]) -> Rows:
    """Experiments, with how many of their trials run."""
    return {str(row.id): _experiment(row) for row in rows}


def _experiment(row: ExperimentRow) -> tuple[str, ...]:
    over = sum(n for state, n in row.trial_states.items() if state in FINISHED)
    running = row.trial_states.get("RUNNING", 0)
    trials = f"{running} run, {over}/{row.trial_count}" if running else f"{over}/{row.trial_count}"
    share = f"{progress_bar(row.progress, 6)} {100 * row.progress:3.0f}%"
    return (
        str(row.id),
        row.state,
        share,
        trials,
        one_line(row.best_value),
        one_line(row.name),
    )


def trial_rows(one: ExperimentSnapshot, rows: Iterable[TrialRow]) -> Rows:
    """Trials of an experiment, with the hyperparameters that differ and why those wait that do."""
    rows = [*rows]
    names, _ = differing(row.hparams for row in rows)
    found = pareto_statuses(one.row, one.trial_rows.values())
    return {str(row.id): _trial(one, row, names, found.get(row.id)) for row in rows}


def _trial(
    one: ExperimentSnapshot, row: TrialRow, names: Iterable[str], status: ParetoStatus | None
) -> tuple[str, ...]:
    own = dict(flat(row.hparams or {}))
    hparams = ", ".join(f"{one_line(n)}={one_line(own[n])}" for n in names if n in own)
    return (
        str(row.id),
        row.state,
        str(row.steps),
        _best(row, status),
        hparams,
        job_text(one, row),
        str(row.restarts),
    )


def _best(row: TrialRow, status: ParetoStatus | None) -> str:
    """The best result; of several objectives all, and whether the trial is on the front."""
    best = row.best_validation
    if status is None or best is None:
        return one_line(best.value if best else None)
    values = ", ".join(map(one_line, status.values.values()))
    return f"{values} (front)" if status.front else values


def job_text(one: ExperimentSnapshot, row: TrialRow) -> str:
    """Where a trial runs, or why it doesn't."""
    status = one.job_statuses.get(row.id)
    if status is None or status.job is None:
        return one_line(row.end_reason or (status.message if status else ""))
    job = status.job
    if not job.waiting:
        return one_line(f"{job.ref} on {','.join(job.nodes)}" if job.nodes else job.ref)
    return one_line(f"{job.ref}: {reason_of(job.reason).short if job.reason else job.state}")


def checkpoint_rows(found: Iterable[CheckpointView], metric: str | None) -> Rows:
    """Checkpoints of a trial, newest first."""
    return {one.uuid: _checkpoint(one, metric) for one in reversed([*found])}


def _checkpoint(one: CheckpointView, metric: str | None) -> tuple[str, ...]:
    value = one.metrics.get(metric) if metric else None
    saved = time.strftime("%m-%d %H:%M", time.localtime(one.time)) if one.time else ""
    return (
        one.uuid[:8],
        str(one.steps),
        one_line(value),
        human_size(one.size),
        one.state,
        saved,
    )


def queue_rows(jobs: Iterable[Job]) -> Rows:
    """The queue in scheduling order."""
    return {f"{job.id} {job.state}": _job(job) for job in jobs}


def _job(job: Job) -> tuple[str, ...]:
    return (
        str(job.position),
        one_line(job.id),
        job.state,
        f"{job.slots_acquired}/{job.slots_needed}",
        one_line(job.user),
        one_line(job.reason_text),
        one_line(job.experiment_id),
        one_line(job.name),
    )


def matching(rows: Iterable[ExperimentRow], text: str) -> Iterable[ExperimentRow]:
    """Those in which each of the words stands: in the id, name, state, owner, project or labels."""
    words = text.lower().split()
    return (row for row in rows if all(word in _searchable(row) for word in words))


def _searchable(row: ExperimentRow) -> str:
    parts = (str(row.id), row.name, row.state, row.owner, row.project, *row.labels)
    return " ".join(parts).lower()
