"""`detslurm job update` and `update-batch`: other places in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detslurm.cli.arguments.ids import client, report_each
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import json_option
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.jobs.update import changes_of, parse

if TYPE_CHECKING:
    from detslurm.sdk.jobs.update import QueueChange, QueueUpdate

_WRITTEN = "ID.NAME=VALUE..."


def _batch(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, QueueChange]:
    """All of them are read before any of them acts."""
    if ctx.resilient_parsing:
        return {}
    try:
        return dict(zip(texts, parse(texts), strict=True))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("job_id", metavar="JOB_ID", shell_complete=completed_by("jobs"))
@click.option("-p", "--priority", metavar="N", help="Set the priority: 1 (first) to 99 (last).")
@click.option("-w", "--weight", metavar="W", help="Set the weight; a larger one starts sooner.")
@click.option("--resource-pool", metavar="NAME", help="Choose the partition.")
@click.option("--qos", metavar="NAME", help="Choose the quality of service.")
@click.option(
    "--max-slots",
    metavar="N|none",
    help="Set how many slots the job's experiment holds at once; none removes the limit.",
)
@click.option(
    "--ahead-of",
    metavar="JOB_ID",
    shell_complete=completed_by("jobs"),
    help="Put it before this job of yours.",
)
@click.option(
    "--behind-of",
    metavar="JOB_ID",
    shell_complete=completed_by("jobs"),
    help="Put it after this job of yours.",
)
@json_option
def update(job_id: str, as_json: bool, **given: str | None) -> None:
    """Change a job that waits: its priority, its partition, its place among your own jobs.

    Of a job of an experiment, priority, weight, partition, QOS and slots are those of the
    experiment. An order holds for the jobs that are in the queue now.

    \b
    Examples:
      detslurm job update 4712 --priority 10
      detslurm job update 4712 --ahead-of 4711
      detslurm job update 4712 --resource-pool a100
    """
    try:
        changes = changes_of(job_id, {n: v for n, v in given.items() if v is not None})
    except LifecycleError as error:
        raise click.UsageError(str(error)) from None
    _make({f"{job_id}.{c.name}={c.value}": c for c in changes}, as_json)


@click.command("update-batch")
@click.argument("changes", metavar=_WRITTEN, nargs=-1, required=True, callback=_batch)
@json_option
def update_batch(changes: dict[str, QueueChange], as_json: bool) -> None:
    """Change several jobs that wait, one after another.

    NAME is an option of `job update` without its dashes. Nothing is changed if one of the changes
    is written wrongly, or makes no sense as the queue is; a later failure stops no other.

    \b
    Examples:
      detslurm job update-batch 4712.priority=1 4713.resource-pool=a100
      detslurm job update-batch 4714.ahead-of=4712 4715.behind-of=4714
    """
    _make(changes, as_json)


def _make(changes: dict[str, QueueChange], as_json: bool) -> None:
    queue = client().queue_update()
    queue.check(changes.values())
    report_each("change", changes, lambda written: _made(queue, changes[written]), as_json=as_json)


def _made(queue: QueueUpdate, change: QueueChange) -> str:
    experiment = queue.experiment_id(change.job_id)
    made = queue.make(change)
    whose = f"job {change.job_id}"
    if experiment is not None and change.anchor is None:
        whose = f"experiment {experiment}"
    done = f"Set `{change.name}` of {whose} to {_value(change)}"
    if change.anchor is not None:
        where = "ahead of" if change.name == "ahead-of" else "behind"
        done = f"Moved job {change.job_id} {where} job {change.anchor}"
        if not made.changed:
            done = f"Left job {change.job_id}, which is {where} job {change.anchor} already"
    place = queue.place(change.job_id)
    told = f"{done}: {place or 'it has started meanwhile'}"
    if not made.gave_way:
        return told
    return f"{told}; with a greater nice now, to make room: {', '.join(made.gave_way)}"


def _value(change: QueueChange) -> str:
    if isinstance(change.value, float):
        return f"{change.value:g}"
    return "none" if change.value is None else str(change.value)
