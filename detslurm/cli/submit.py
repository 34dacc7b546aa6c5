"""`detslurm submit`: from an experiment.yaml to jobs in the queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detslurm.cli import config_options
from detslurm.cli.ids import client
from detslurm.cli.output import json_option, note

if TYPE_CHECKING:
    from detslurm.sdk.submission.planning import Plan
    from detslurm.store import Store


@click.command()
@config_options.config_file
@click.argument("context_dir", required=False, type=click.Path(path_type=Path))
@config_options.overrides
@config_options.template
@click.option(
    "-i",
    "--include",
    "includes",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Copy this file or directory, too, beside the content of CONTEXT_DIR. Repeatable.",
)
@click.option(
    "--cluster",
    "cluster_name",
    type=click.Choice(["auto", "slurm", "local"]),
    default="auto",
    show_default=True,
    help="Choose where to run: Slurm, or this machine. auto takes Slurm where it is set up.",
)
@click.option(
    "--paused", is_flag=True, help="Queue the jobs held, until `detslurm experiment activate`."
)
@click.option(
    "-f",
    "--follow",
    "--follow-first-trial",
    is_flag=True,
    help="Stay, and print the log of the first trial as it grows.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print the plan and the batch script, and queue nothing."
)
@json_option
def submit(
    config_file: str,
    context_dir: Path | None,
    overrides: tuple[str, ...],
    template: str | None,
    includes: tuple[Path, ...],
    cluster_name: str,
    paused: bool,
    follow: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Check an experiment, copy its code into the store, and queue its jobs.

    CONFIG is a YAML file, or - for standard input. CONTEXT_DIR holds the code; by default it is the
    directory of CONFIG. Jobs run the copy, so that you can keep editing.

    \b
    Examples:
      detslurm submit experiment.yaml
      detslurm submit experiment.yaml code/ --config searcher.max_trials=20
      detslurm submit experiment.yaml --dry-run
      detslurm submit experiment.yaml --paused --json
    """
    if follow and as_json:
        raise click.UsageError("--follow can't be combined with --json")
    mine = client()
    plan = mine.plan(
        config_file,
        context_dir,
        includes=includes,
        overrides=overrides,
        template=template,
        cluster=cluster_name,
    )
    if dry_run:
        _show(plan, mine.store, as_json=as_json)
        return
    note(f"Preparing files: {plan.context.summary}")
    done = mine.submit(plan, paused=paused)
    if as_json:
        click.echo(json.dumps(done.to_dict()))
    else:
        click.echo(f"Created experiment {done.experiment_id}")
        what = "1 trial" if done.trials == 1 else f"{done.trials} trials"
        jobs = ", ".join(done.job_ids)
        click.echo(f"Queued {what} on {done.cluster}: job {jobs}{' (paused)' if paused else ''}")
    if follow:
        from detslurm.cli.follow import follow_first_trial

        follow_first_trial(mine, done.experiment_id)


def _show(plan: Plan, store: Store, *, as_json: bool) -> None:
    """The plan and the batch script of its first array, as they would be."""
    from detslurm.sdk.submission.submit import requests

    place = store.path / "experiments" / "<id>"
    jobs = list(requests(plan, place, name="det-<id>"))
    script = plan.cluster.script(jobs[0][1])
    shape = plan.jobs.template
    facts = {
        "name": plan.config.name,
        "cluster": plan.cluster.name,
        "partition": shape.partition or "(default)",
        "trials": plan.trials,
        "slots_per_trial": shape.slots,
        "slot_type": shape.slot_type,
        "nodes_per_trial": shape.nodes,
        "arrays": [{"trials": c.count, "at_once": c.throttle or c.count} for c, _ in jobs],
        "when_preempted": plan.on_preempt,
        "store": str(store.path),
        "context": plan.context.summary,
    }
    if as_json:
        click.echo(json.dumps({**facts, "script": script}))
        return
    # A search's jobs are workers for any of its trials.
    each = "trials" if plan.each == 1 else f"times {plan.each} trials"
    each = "workers" if plan.is_search else each
    at_once = (f"{c.count} {each}, {c.throttle or c.count} at once" for c, _ in jobs)
    for key, value in {**facts, "arrays": "; ".join(at_once)}.items():
        click.echo(f"{key.replace('_', ' '):>16}: {value}")
    click.echo("\nThe batch script" + (" of the first array" if len(jobs) > 1 else "") + ":\n")
    click.echo(script)
