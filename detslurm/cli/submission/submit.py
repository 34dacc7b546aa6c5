"""`detslurm submit`: from an experiment.yaml to jobs in the queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import Command, client, together
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import json_option, note, print_json
from detslurm.cli.output.progress import transfer
from detslurm.cli.submission import config_options
from detslurm.cli.submission.cost import cost_rows
from detslurm.cli.submission.follow import follow_first_trial
from detslurm.cli.submission.test_mode import await_checks
from detslurm.sdk import workspaces
from detslurm.sdk.client import Client
from detslurm.sdk.costs.evidence import cost_of_plan
from detslurm.sdk.submission.environment import is_packed
from detslurm.sdk.submission.planning import Plan
from detslurm.sdk.submission.submit import Submission, requests

from_checkpoint = click.option(
    "--from-checkpoint",
    metavar="UUID",
    shell_complete=completed_by("checkpoints"),
    help="Begin with the weights of this checkpoint, and count from 0.",
)
paused = click.option(
    "--paused", is_flag=True, help="Queue the jobs held, until `detslurm experiment activate`."
)
follow = click.option(
    "-f",
    "--follow",
    "--follow-first-trial",
    is_flag=True,
    help="Stay, and print the log of the first trial as it grows; fail if the trial does.",
)


project = click.option(
    "--project",
    metavar="[WORKSPACE/]PROJECT",
    help="Put the experiment into this project, which need not exist before.",
)
include = click.option(
    "-i",
    "--include",
    "includes",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Copy this file or directory, too, beside the content of CONTEXT_DIR. Repeatable.",
)
cluster = click.option(
    "--cluster",
    "cluster_name",
    type=click.Choice(["auto", "slurm", "local"]),
    default="auto",
    show_default=True,
    help="Choose where to run: Slurm, or this machine. auto takes Slurm where it is set up.",
)
test_mode = click.option(
    "-t",
    "--test-mode",
    is_flag=True,
    help="Train one batch in one trial, validate and save, and wait for that: a quick check.",
)
dry_run = click.option(
    "--dry-run", is_flag=True, help="Print the plan and the batch script, and queue nothing."
)


class SubmitOptions(TypedDict):
    """The options that `submit`, `run` and `multirun` share."""

    overrides: tuple[str, ...]
    template: str | None
    project: str | None
    includes: tuple[Path, ...]
    cluster_name: str
    from_checkpoint: str | None
    paused: bool
    follow: bool | None  # None where neither way was chosen
    test_mode: bool
    dry_run: bool
    as_json: bool


def submit_options(follow_option: Callable[..., Any]) -> Callable[[Command], Command]:
    """The decorator with these options but `--json`."""
    return together(
        config_options.overrides,
        config_options.template,
        project,
        include,
        cluster,
        from_checkpoint,
        paused,
        follow_option,
        test_mode,
        dry_run,
    )


@click.command()
@config_options.config_file
@click.argument("context_dir", required=False, type=click.Path(path_type=Path))
@submit_options(follow)
@json_option
def submit(config_file: str, context_dir: Path | None, **options: Unpack[SubmitOptions]) -> None:
    """Check an experiment, copy its code into the store, and queue its jobs.

    CONFIG is a YAML file, or - for standard input. CONTEXT_DIR holds the code; by default it is the
    directory of CONFIG. Jobs run the copy, so that you can keep editing.

    \b
    Examples:
      detslurm submit experiment.yaml
      detslurm submit experiment.yaml code/ --config searcher.max_trials=20
      detslurm submit experiment.yaml --dry-run
      detslurm submit experiment.yaml --test-mode
      detslurm submit experiment.yaml --from-checkpoint 0f3a0a6e
      detslurm submit experiment.yaml --paused --json
    """
    refuse_both(options["follow"], options["as_json"])
    mine = client()
    carry_out(plan_of(mine, config_file, context_dir, options), mine, options)


def plan_of(
    mine: Client,
    config: str | Mapping[str, Any],
    context_dir: Path | None,
    options: SubmitOptions,
) -> Plan:
    """The plan of a submission with the options of a command."""
    return mine.plan(
        config,
        context_dir,
        includes=options["includes"],
        overrides=[*options["overrides"], *project_overrides(options["project"])],
        template=options["template"],
        cluster=options["cluster_name"],
        from_checkpoint=options["from_checkpoint"],
        test_mode=options["test_mode"],
    )


def carry_out(plan: Plan, mine: Client, options: SubmitOptions) -> None:
    """Queue a plan, or show it, and follow its first trial; the exit status is 1 if that fails."""
    if options["test_mode"] and options["paused"]:
        raise click.UsageError("--test-mode can't be combined with --paused")
    if options["dry_run"]:
        _show(plan, mine, as_json=options["as_json"])
        return
    note(f"Preparing files: {plan.context.summary}")
    if plan.known is not None:
        note(f"Known results: {plan.known_summary}")
    done = _submitted(plan, mine, paused=options["paused"])
    if plan.provenance is not None and (changes := plan.provenance.note):
        note(changes)
    if not (options["test_mode"] and options["as_json"]):
        report(done, f"Created experiment {done.experiment_id}", as_json=options["as_json"])
    if options["follow"]:
        completed = follow_first_trial(mine, done.experiment_id)
        if not (completed or options["test_mode"]):  # a test prints its own result
            raise click.exceptions.Exit(1)
    elif done.experiment_id == 1 and not options["as_json"]:  # the first of a new user
        note("Next: `detslurm experiment describe 1`, and `detslurm plot 1` for its curves")
    if options["test_mode"]:
        await_checks(mine, done, as_json=options["as_json"])


def _submitted(plan: Plan, mine: Client, *, paused: bool) -> Submission:
    if plan.environment is None:
        return mine.submit(plan, paused=paused).submission
    there = is_packed(plan.environment, mine.store)
    note(f"{'Staging, packed before' if there else 'Packing'}: {plan.environment.summary}")
    with transfer("Packing the environment") as progress:
        return mine.submit(plan, paused=paused, progress=progress).submission


def refuse_both(follow: bool | None, as_json: bool) -> None:
    """A log is no part of a JSON document."""
    if follow and as_json:
        raise click.UsageError("--follow can't be combined with --json")


def report(done: Submission, headline: str, *, as_json: bool) -> None:
    """Print the result of a submission."""
    if as_json:
        print_json(done.to_dict())
        return
    click.echo(headline)
    what = counted(done.trials, "trial")
    if done.deferred:
        what = f"{done.trials - done.deferred} of {what}"
    jobs = ", ".join(done.job_ids)
    click.echo(f"Queued {what} on {done.cluster}: job {jobs}{' (paused)' if done.paused else ''}")


def project_overrides(name: str | None) -> list[str]:
    """The project as overrides of the configuration."""
    try:
        return workspaces.project_overrides(name) if name is not None else []
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _show(plan: Plan, mine: Client, *, as_json: bool) -> None:
    """The plan, its cost and the batch script of its first array, as they would be."""
    cost, place = cost_of_plan(mine, plan), mine.store.path / "experiments" / "<id>"
    jobs = list(requests(plan, place))
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
        **({"submitted_later": plan.deferral.elements} if plan.deferral is not None else {}),
        "when_preempted": plan.on_preempt,
        "store": str(mine.store.path),
        "context": plan.context.summary,
        **({"environment": plan.environment.summary} if plan.environment is not None else {}),
        **({"known_results": plan.known_summary} if plan.known is not None else {}),
    }
    if as_json:
        print_json({**facts, "cost": cost.to_dict(), "script": script})
        return
    # A search's jobs are workers for any of its trials.
    noun = "worker" if plan.is_search else "trial"

    def count(jobs: int) -> str:
        several = plan.each > 1 and not plan.is_search
        return f"{jobs} times {plan.each} trials" if several else counted(jobs, noun)

    at_once = (f"{count(c.count)}, {c.throttle or c.count} at once" for c, _ in jobs)
    shown = {**facts, "arrays": "; ".join(at_once), **dict(cost_rows(cost))}
    for key, value in shown.items():
        click.echo(f"{key.replace('_', ' '):>16}: {value}")
    click.echo("\nThe batch script" + (" of the first array" if len(jobs) > 1 else "") + ":\n")
    click.echo(script)
