"""Commands that want something of experiments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detslurm.cli.ids import client, experiment_id, for_each, several_ids
from detslurm.cli.output import json_option, note, print_json
from detslurm.cli.seconds import Seconds

if TYPE_CHECKING:
    from detslurm.sdk.experiment import Experiment


@click.command()
@several_ids
@json_option
def pause(ids: list[int], as_json: bool) -> None:
    """Let running trials checkpoint and leave their allocations; hold what waits.

    Several ids may be given, with spaces or commas between them.
    """

    def act(experiment: Experiment) -> str:
        experiment.pause()
        return f"Paused experiment {experiment.id}"

    for_each(ids, act, as_json=as_json)


@click.command()
@several_ids
@json_option
def activate(ids: list[int], as_json: bool) -> None:
    """Let paused experiments go on from their checkpoints; queue again what lost its job."""

    def act(experiment: Experiment) -> str:
        experiment.activate()
        return f"Activated experiment {experiment.id}"

    for_each(ids, act, as_json=as_json)


@click.command()
@several_ids
@json_option
def cancel(ids: list[int], as_json: bool) -> None:
    """Let running trials checkpoint, then end the experiment for good."""

    def act(experiment: Experiment) -> str:
        done = experiment.cancel()
        return f"Canceled experiment {experiment.id}" if done else _over(experiment)

    for_each(ids, act, as_json=as_json)


@click.command()
@several_ids
@json_option
def kill(ids: list[int], as_json: bool) -> None:
    """End the experiment for good, now; checkpoints that were committed stay."""

    def act(experiment: Experiment) -> str:
        done = experiment.kill()
        return f"Killed experiment {experiment.id}" if done else _over(experiment)

    for_each(ids, act, as_json=as_json)


def _over(experiment: Experiment) -> str:
    return f"Experiment {experiment.id} is over already: {experiment.state}"


@click.command()
@several_ids
@json_option
def archive(ids: list[int], as_json: bool) -> None:
    """Leave finished experiments out of lists; `list --all` still shows them."""

    def act(experiment: Experiment) -> str:
        experiment.archive()
        return f"Archived experiment {experiment.id}"

    for_each(ids, act, as_json=as_json, query_queue=True)


@click.command()
@several_ids
@json_option
def unarchive(ids: list[int], as_json: bool) -> None:
    """Show archived experiments in lists again."""

    def act(experiment: Experiment) -> str:
        experiment.unarchive()
        return f"Unarchived experiment {experiment.id}"

    for_each(ids, act, as_json=as_json)


@click.command()
@several_ids
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
@json_option
def delete(ids: list[int], yes: bool, as_json: bool) -> None:
    """Remove experiments with their checkpoints, logs, metrics and code. Active ones are refused.

    A deletion that broke off can be repeated.
    """
    what = f"experiment {ids[0]}" if len(ids) == 1 else f"experiments {', '.join(map(str, ids))}"
    if not yes and not click.confirm(f"Delete {what} for ever, with all checkpoints?", err=True):
        note(f"Aborting {what.split()[0]} deletion.")
        raise click.exceptions.Exit(1)

    def act(experiment: Experiment) -> str:
        experiment.delete()
        return f"Deleted experiment {experiment.id}"

    for_each(ids, act, as_json=as_json, query_queue=True, deleted=True)


@click.command()
@experiment_id
@click.option(
    "--polling-interval",
    default=5.0,
    show_default=True,
    type=Seconds(min=0.1),
    help="Seconds between looks at the store.",
)
@json_option
def wait(experiment_id: int, polling_interval: float, as_json: bool) -> None:
    """Wait until the experiment is over; the exit status is 0 only if it is COMPLETED.

    Progress goes to stderr. An experiment that is paused ends the waiting, too.
    """
    from detslurm.sdk import polling

    experiment = client().experiment(experiment_id)
    state = polling.wait(experiment, interval=polling_interval, report=note)
    if as_json:
        print_json({"id": experiment_id, "state": state})
    else:
        click.echo(f"Experiment {experiment_id} is {state}")
    if state != "COMPLETED":
        raise click.exceptions.Exit(1)
