"""`detslurm experiment set gc-policy`: how many checkpoints are kept, with a preview."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import client, experiment_id
from detslurm.cli.output.printing import json_option, note, number, print_json, size, table, warn
from detslurm.sdk.checkpoints.catalog import unreachable_problems

if TYPE_CHECKING:
    from detslurm.sdk.disk.gc import GCPreview
    from detslurm.sdk.parts import GCPolicy

_COUNT = click.IntRange(0)


@click.command("gc-policy")
@experiment_id
@click.option("--save-experiment-best", type=_COUNT, help="Keep the N best of the experiment.")
@click.option("--save-trial-best", type=_COUNT, help="Keep the N best of each trial.")
@click.option("--save-trial-latest", type=_COUNT, help="Keep the N latest of each trial.")
@click.option("-y", "--yes", is_flag=True, help="Delete without asking for confirmation.")
@json_option
def gc_policy(experiment_id: int, yes: bool, as_json: bool, **numbers: int | None) -> None:
    """Change how many checkpoints of an experiment are kept.

    The checkpoints that the new policy does not keep are shown and, after a question, deleted at
    once. Numbers that are not given stay as they are.

    \b
    Examples:
      detslurm experiment set gc-policy 7 --save-trial-best 1 --save-trial-latest 0
      detslurm experiment set gc-policy 7 --save-experiment-best 3 --yes
    """
    given = {name: value for name, value in numbers.items() if value is not None}
    if not given:
        raise click.UsageError("give at least one of the numbers, such as --save-trial-best 1")
    from msgspec.structs import replace

    experiment = client().stored(experiment_id)
    policy = replace(experiment.gc_policy, **given)
    found = experiment.gc_preview(policy)
    ranks = policy.save_experiment_best + policy.save_trial_best
    if found.checkpoints and found.unranked and ranks:
        from detslurm.sdk.checkpoints.choosing import unrated

        unranked = unrated(experiment.checkpoints())
        warn(f"experiment {experiment.id} has {unranked}: the best of them can't be kept")
    if not yes:
        _show(found)
        if not click.confirm("Change the policy and delete these checkpoints?", err=True):
            note("Nothing was changed.")
            raise click.exceptions.Exit(1)
    done = experiment.set_gc_policy(**given)
    for problem in (*done.problems, *unreachable_problems(done.unreachable)):
        warn(problem)
    if as_json:
        deleted = [checkpoint.uuid for checkpoint in done.deleted]
        why = {"kept": done.kept, "unreachable": done.unreachable}
        print_json({"policy": policy, "deleted": deleted, "freed": done.freed, **why})
        return
    click.echo(f"Set GC policy of experiment {experiment_id} to {described(policy)}")
    click.echo(f"Deleted {counted(len(done.deleted), 'checkpoint')}, {size(done.freed)}")


def described(policy: GCPolicy) -> str:
    """A policy in a line."""
    names = ("save_experiment_best", "save_trial_best", "save_trial_latest")
    return ", ".join(f"{name}: {getattr(policy, name)}" for name in names)


def _show(found: GCPreview) -> None:
    """Print a preview on stderr, because stdout is for the result."""
    if found.checkpoints:
        rows = [
            (doomed.trial, doomed.steps, number(doomed.metric), doomed.uuid, size(doomed.size))
            for doomed in found.checkpoints
        ]
        note(table(("Trial ID", "# of Batches", "Validation Metric", "UUID", "Size"), rows))
    gone = counted(len(found.checkpoints), "checkpoint")
    note(f"{gone} would be deleted, {size(found.freed)}; {found.stay} would stay.")
    for problem in found.problems:
        warn(problem)
    for uuid, why in found.kept_by.items():
        note(f"{uuid} is kept for {why}.")
