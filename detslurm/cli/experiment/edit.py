"""Commands that change what an experiment is called and how much it may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from detslurm.cli.arguments.ids import experiment_id, for_each, several_ids
from detslurm.cli.experiment.gc_policy import gc_policy
from detslurm.cli.output.printing import json_option

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment


def _change(number: int, act: Callable[[Experiment], None], message: str, as_json: bool) -> None:
    def one(experiment: Experiment) -> str:
        act(experiment)
        return message

    for_each([number], one, as_json=as_json)


def _set(
    number: int, name: str, act: Callable[[Experiment], None], shown: str, as_json: bool
) -> None:
    _change(number, act, f"Set `{name}` of experiment {number} to {shown}", as_json)


@click.group("set")
def set_group() -> None:
    """Change the name, labels, limits, priority or another setting of an experiment.

    \b
    Examples:
      detslurm experiment set name 7 "larger batches"
      detslurm experiment set max-slots 7 16
      detslurm experiment set budget 7 100
      detslurm experiment set priority 7 10
      detslurm experiment set weight 7 2
    """


@set_group.command()
@experiment_id
@click.argument("name")
@json_option
def name(experiment_id: int, name: str, as_json: bool) -> None:
    """Rename an experiment."""
    _set(experiment_id, "name", lambda one: one.set_name(name), repr(name), as_json)


@set_group.command()
@experiment_id
@click.argument("description")
@json_option
def description(experiment_id: int, description: str, as_json: bool) -> None:
    """Replace the description of an experiment."""
    shown = repr(description)
    _set(experiment_id, "description", lambda one: one.set_description(description), shown, as_json)


@set_group.command()
@experiment_id
@click.argument("labels", nargs=-1)
@json_option
def labels(experiment_id: int, labels: tuple[str, ...], as_json: bool) -> None:
    """Replace all labels of an experiment; without LABELS, remove them."""
    shown = ", ".join(labels) or "none"
    _set(experiment_id, "labels", lambda one: one.set_labels(labels), shown, as_json)


@set_group.command()
@experiment_id
@click.argument("notes")
@json_option
def notes(experiment_id: int, notes: str, as_json: bool) -> None:
    """Replace the notes of an experiment."""
    message = f"Set `notes` of experiment {experiment_id}"
    _change(experiment_id, lambda one: one.set_notes(notes), message, as_json)


@set_group.command("max-slots")
@experiment_id
@click.argument("value", metavar="N|none")
@json_option
def max_slots(experiment_id: int, value: str, as_json: bool) -> None:
    """Limit how many slots the trials of an experiment use at once; none removes the limit."""
    slots = None if value.lower() in ("none", "null") else _whole(value)
    _set(experiment_id, "max-slots", lambda one: one.set_max_slots(slots), value.lower(), as_json)


@set_group.command()
@experiment_id
@click.argument("value", metavar="N|none")
@json_option
def budget(experiment_id: int, value: str, as_json: bool) -> None:
    """Limit the slot-hours that an experiment may use; none removes the limit.

    Once they are used, the experiment is paused. After raising the budget, `activate` it.
    """
    hours = None if value.lower() in ("none", "null") else _number(value)
    _set(experiment_id, "budget", lambda one: one.set_budget(hours), value.lower(), as_json)


@set_group.command()
@experiment_id
@click.argument("value", metavar="N", type=click.IntRange(1, 99))
@json_option
def priority(experiment_id: int, value: int, as_json: bool) -> None:
    """Set the priority among your own jobs, from 1 (first) to 99 (last); the default is 42.

    It becomes the nice value of the jobs in Slurm, and replaces a weight.
    """
    _set(experiment_id, "priority", lambda one: one.set_priority(value), str(value), as_json)


@set_group.command("resource-pool")
@experiment_id
@click.argument("value", metavar="NAME")
@json_option
def resource_pool(experiment_id: int, value: str, as_json: bool) -> None:
    """Move waiting jobs and later submissions to another partition."""
    _set(experiment_id, "resource_pool", lambda one: one.set_resource_pool(value), value, as_json)


@set_group.command()
@experiment_id
@click.argument("value", metavar="NAME")
@json_option
def qos(experiment_id: int, value: str, as_json: bool) -> None:
    """Give waiting jobs and later submissions another quality of service."""
    _set(experiment_id, "qos", lambda one: one.set_qos(value), value, as_json)


@set_group.command()
@experiment_id
@click.argument("value", metavar="W", type=click.FloatRange(0, min_open=True))
@json_option
def weight(experiment_id: int, value: float, as_json: bool) -> None:
    """Set the weight among your own jobs: twice the weight is half the priority's number.

    The default is 1, which is priority 42. It replaces a priority.
    """
    _set(experiment_id, "weight", lambda one: one.set_weight(value), f"{value:g}", as_json)


def _whole(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{value!r} is neither a whole number nor none")
    return int(value)


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor none") from None


set_group.add_command(gc_policy)


@click.command()
@several_ids
@click.argument("workspace")
@click.argument("project")
@json_option
def move(ids: list[int], workspace: str, project: str, as_json: bool) -> None:
    """Move experiments to a project, which need not exist before.

    \b
    Examples:
      detslurm experiment move 7 vision digits
      detslurm experiment move "mnist*" vision digits
    """

    def act(experiment: Experiment) -> str:
        experiment.move(workspace, project)
        return f"Moved experiment {experiment.id} to {workspace}/{project}"

    for_each(ids, act, as_json=as_json)


@click.group()
def label() -> None:
    """Add or remove labels."""


@label.command()
@experiment_id
@click.argument("labels", nargs=-1, required=True)
@json_option
def add(experiment_id: int, labels: tuple[str, ...], as_json: bool) -> None:
    """Add labels to an experiment."""

    def act(experiment: Experiment) -> None:
        for text in labels:
            experiment.add_label(text)

    lines = (f"Added label {text!r} to experiment {experiment_id}" for text in labels)
    _change(experiment_id, act, "\n".join(lines), as_json)


@label.command()
@experiment_id
@click.argument("labels", nargs=-1, required=True)
@json_option
def remove(experiment_id: int, labels: tuple[str, ...], as_json: bool) -> None:
    """Remove labels from an experiment."""

    def act(experiment: Experiment) -> str:
        had, lines = experiment.labels, []
        for text in labels:
            experiment.remove_label(text)
            done = "Removed label {!r} from" if text in had else "There was no label {!r} on"
            lines.append(f"{done.format(text)} experiment {experiment.id}")
        return "\n".join(lines)

    for_each([experiment_id], act, as_json=as_json)
