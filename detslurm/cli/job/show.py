"""`detslurm job describe`: all that is known of a job in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.cluster_option import cluster_option
from detslurm.cli.arguments.ids import client, either_kind, job_or_experiment
from detslurm.cli.experiment.description import properties
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import Document, describes, human_time, local_time, size
from detslurm.sdk.parts import compress_indices, reason_of

if TYPE_CHECKING:
    from detslurm.sdk.client import Client
    from detslurm.sdk.jobs.job import Job

_RUNS = 20  # trials whose runs are looked up; more are only named


@click.command()
@click.argument("job", metavar="JOB", shell_complete=completed_by("jobs"))
@either_kind
@cluster_option
@describes
def describe(job: str, cluster: str, experiment: bool, is_job: bool) -> Document:
    """Show a job in the queue: whose it is, what it asked for, why it waits, where it runs.

    JOB is Slurm's id of a job or an array, of elements (4711_3), or an experiment's id or name.
    Of a number that is both, the experiment is meant while it has jobs in the queue. Elements of an
    array that are in different conditions are shown apart.

    \b
    Examples:
      detslurm job describe 4711
      detslurm job describe 4711_3 --json
    """
    mine = client()
    name, kind = job_or_experiment(job, experiment=experiment, job=is_job)
    try:
        found = mine.find_jobs(name, cluster=cluster, kind=kind)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return Document(
        lambda: "\n\n".join(properties(_rows(mine, one)) for one in found),
        lambda: [{**one.to_dict(), "runs": _runs(mine, one)} for one in found],
    )


def _rows(mine: Client, job: Job) -> Iterator[tuple[str, Any]]:
    yield "Job", job.id
    yield "Type", job.type
    yield "Name", job.name
    yield "User", job.user
    yield "Account", job.account
    yield "QOS", job.qos
    yield "Experiment", job.experiment_id
    yield "Trials", ", ".join(_trials(job, _runs(mine, job)))
    yield "Resource Pool", job.resource_pool
    yield "State", f"{job.state} ({job.slurm_state})"
    if job.reason:
        yield "Reason", f"{reason_of(job.reason).short} ({job.reason})"
        yield "Paused", job.pause_reason if job.held else None
        yield "Remedy", _remedy(job)
    yield "Position", job.position
    yield "Priority", job.priority
    yield "Nice", job.nice
    yield "Slurm's Priority", job.slurm_priority if job.cluster == "slurm" else None
    yield "Submitted", local_time(job.submitted)
    yield "Started", local_time(job.started)
    yield "Expected Start", local_time(job.expected_start)
    yield "Time Limit", human_time(job.time_limit) if job.time_limit else None
    yield "Time Left", human_time(job.time_left) if job.time_left is not None else None
    yield "Slots", f"{job.slots_acquired}/{job.slots_needed}"
    yield "Requested", ", ".join(_requested(job)) + (" each" if len(job.refs) > 1 else "")
    yield "Nodes", ", ".join(job.nodes)
    yield "Directory", job.directory


def _remedy(job: Job) -> str:
    if job.held and job.experiment_id is not None:
        return f"`detslurm job why -j {job.id}` shows how it can go on"
    return reason_of(job.reason).remedy.format(ref=job.id)


def _requested(job: Job) -> Iterator[str]:
    for name, value in job.requested.items():
        yield f"{name} {size(value << 20) if name == 'memory' else value}"


def _runs(mine: Client, job: Job) -> dict[int, int]:
    """Trial -> the number of its newest run; of the first trials, where there are many."""
    views = (mine.stored_trial(trial).view for trial in job.trial_ids[:_RUNS])
    return {view.id: view.runs[-1].number for view in views if view.runs}


def _trials(job: Job, runs: dict[int, int]) -> Iterator[str]:
    shown = job.trial_ids[:_RUNS]
    yield from (f"{trial} (run {runs[trial]})" if trial in runs else str(trial) for trial in shown)
    if rest := job.trial_ids[_RUNS:]:
        yield compress_indices(rest)
