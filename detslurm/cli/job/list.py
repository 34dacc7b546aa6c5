"""`detslurm job list`: the queue in scheduling order."""

from __future__ import annotations

import click

from detslurm.cli.arguments.cluster_option import cluster_option
from detslurm.cli.arguments.ids import client
from detslurm.cli.output.printing import Column, Table, note, shows

_COLUMNS = [
    Column("#", lambda job: job.position),
    Column("ID", lambda job: job.id, least=10),
    Column("Type", lambda job: job.type, drop=6),
    Column("Job Name", lambda job: job.name, least=8),
    Column("Priority", lambda job: job.priority, drop=3),
    Column("Submitted", lambda job: job.submitted, "time", drop=4),
    Column("Slots (acquired/needed)", lambda job: f"{job.slots_acquired}/{job.slots_needed}"),
    Column("Status", lambda job: job.state, "state"),
    Column("User", lambda job: job.user, drop=2),
    Column("Reason", lambda job: job.reason_text, drop=1, least=10),
    Column("Expected Start", lambda job: job.expected_start, "clock", drop=7),
    Column("Experiment", lambda job: job.experiment_id, drop=5),
    Column("Resource Pool", lambda job: job.resource_pool, drop=8),
]


@click.command("list")
@click.option(
    "-p", "--resource-pool", "pool", metavar="NAME", help="Show the jobs of one partition alone."
)
@click.option("--mine", is_flag=True, help="Show your own jobs alone.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Show this many."
)
@click.option("--reverse", is_flag=True, help="Begin with the job that starts last.")
@cluster_option
@shows
def list_jobs(pool: str | None, mine: bool, limit: int, reverse: bool, cluster: str) -> Table:
    """List the jobs in the queue: those that run, then those that wait, in scheduling order.

    \b
    Examples:
      detslurm job list
      detslurm job list --resource-pool a100 --mine
    """
    found = client().list_jobs(pool, cluster=cluster)
    if mine:
        from detslurm._base.access import user_name

        found = [job for job in found if job.user == user_name()]
    if reverse:
        found.reverse()
    if len(found) > limit:
        note(f"Showing {limit} of {len(found)} jobs; --limit shows more.")
    shown = found[:limit]
    return Table(_COLUMNS, shown, lambda: [job.to_dict() for job in shown])
