"""Commands that change what an experiment is called and how much it may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import experiment_id, for_each, several_ids
from detslurm.cli.experiment.gc_policy import gc_policy
from detslurm.cli.output.printing import json_option

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment


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


def _setting(
    name: str,
    metavar: str,
    change: Callable[[Experiment, Any], None],
    text: str,
    shown: Callable[[Any], str] = str,
    **argument: Any,
) -> None:
    """Add the command `set NAME`; `shown` gives the new value in its message."""

    @set_group.command(name, help=text)
    @experiment_id
    @click.argument("value", metavar=metavar, **argument)
    @json_option
    def command(experiment_id: int, value: Any, as_json: bool) -> None:
        def act(experiment: Experiment) -> str:
            change(experiment, value)
            to = f" to {new}" if (new := shown(value)) else ""
            return f"Set `{name}` of experiment {experiment.id}{to}"

        for_each([experiment_id], act, as_json=as_json)


def _limit(value: str) -> float | None:
    """A number, None for none."""
    if value.lower() in ("none", "null"):
        return None
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor none") from None


def _whole_limit(value: str) -> int | None:
    if value.lower() in ("none", "null"):
        return None
    if not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{value!r} is neither a whole number nor none")
    return int(value)


def _limit_text(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:.12g}"


_setting("name", "NAME", lambda one, name: one.set_name(name), "Rename an experiment.", repr)
_setting(
    "description",
    "DESCRIPTION",
    lambda one, text: one.set_description(text),
    "Replace the description of an experiment.",
    repr,
)
_setting(
    "labels",
    "[LABELS]...",
    lambda one, labels: one.set_labels(labels),
    "Replace all labels of an experiment; without LABELS, remove them.",
    lambda labels: ", ".join(labels) or "none",
    nargs=-1,
)
_setting(
    "notes",
    "NOTES",
    lambda one, text: one.set_notes(text),
    "Replace the notes of an experiment.",
    lambda text: "",
)
_setting(
    "max-slots",
    "N|none",
    lambda one, slots: one.set_max_slots(slots),
    "Limit how many slots the trials of an experiment use at once; none removes the limit.",
    _limit_text,
    type=_whole_limit,
)
_setting(
    "budget",
    "N|none",
    lambda one, hours: one.set_budget(hours),
    """Limit the slot-hours that an experiment may use; none removes the limit.

    Once they are used, the experiment is paused. After raising the budget, `activate` it.
    """,
    _limit_text,
    type=_limit,
)
_setting(
    "priority",
    "N",
    lambda one, priority: one.set_priority(priority),
    """Set the priority among your own jobs, from 1 (first) to 99 (last); the default is 42.

    It becomes the nice value of the jobs in Slurm, and replaces a weight.
    """,
    type=click.IntRange(1, 99),
)
_setting(
    "resource-pool",
    "NAME",
    lambda one, name: one.set_resource_pool(name),
    "Move waiting jobs and later submissions to another partition.",
)
_setting(
    "qos",
    "NAME",
    lambda one, name: one.set_qos(name),
    "Give waiting jobs and later submissions another quality of service.",
)
_setting(
    "weight",
    "W",
    lambda one, weight: one.set_weight(weight),
    """Set the weight among your own jobs: twice the weight is half the priority's number.

    The default is 1, which is priority 42. It replaces a priority.
    """,
    "{:g}".format,
    type=click.FloatRange(0, min_open=True),
)
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

    def act(experiment: Experiment) -> str:
        for text in labels:
            experiment.add_label(text)
        return "\n".join(f"Added label {text!r} to experiment {experiment.id}" for text in labels)

    for_each([experiment_id], act, as_json=as_json)


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
