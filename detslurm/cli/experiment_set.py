"""Commands that change what an experiment is called and how much it may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detslurm.cli.ids import client, experiment_id

if TYPE_CHECKING:
    from detslurm.sdk.experiment import Experiment


def _experiment(number: int) -> Experiment:
    return client().stored(number)


@click.group("set")
def set_group() -> None:
    """Change a setting of an experiment: set NAME ID VALUE."""


@set_group.command()
@experiment_id
@click.argument("name")
def name(experiment_id: int, name: str) -> None:
    """Give the experiment another name."""
    _experiment(experiment_id).set_name(name)
    click.echo(f"Set `name` of experiment {experiment_id} to {name!r}")


@set_group.command()
@experiment_id
@click.argument("description")
def description(experiment_id: int, description: str) -> None:
    """Replace the description."""
    _experiment(experiment_id).set_description(description)
    click.echo(f"Set `description` of experiment {experiment_id} to {description!r}")


@set_group.command()
@experiment_id
@click.argument("labels", nargs=-1)
def labels(experiment_id: int, labels: tuple[str, ...]) -> None:
    """Replace all labels; none given removes them."""
    _experiment(experiment_id).set_labels(labels)
    click.echo(f"Set `labels` of experiment {experiment_id} to {', '.join(labels) or 'none'}")


@set_group.command()
@experiment_id
@click.argument("notes")
def notes(experiment_id: int, notes: str) -> None:
    """Replace the notes."""
    _experiment(experiment_id).set_notes(notes)
    click.echo(f"Set `notes` of experiment {experiment_id}")


@set_group.command("max-slots")
@experiment_id
@click.argument("value", metavar="N|none")
def max_slots(experiment_id: int, value: str) -> None:
    """How many slots the experiment's trials may hold at once."""
    slots = None if value.lower() in ("none", "null") else _whole(value)
    _experiment(experiment_id).set_max_slots(slots)
    click.echo(f"Set `max_slots` of experiment {experiment_id} to {value.lower()}")


@set_group.command()
@experiment_id
@click.argument("value", metavar="N", type=click.IntRange(1, 99))
def priority(experiment_id: int, value: int) -> None:
    """From 1 (first) to 99 (last) among your own jobs; becomes Slurm's nice."""
    _experiment(experiment_id).set_priority(value)
    click.echo(f"Set `priority` of experiment {experiment_id} to {value}")


def _whole(value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{value!r} is neither a whole number nor none")
    return int(value)


@click.group()
def label() -> None:
    """Add and remove labels."""


@label.command()
@experiment_id
@click.argument("labels", nargs=-1, required=True)
def add(experiment_id: int, labels: tuple[str, ...]) -> None:
    """Add labels."""
    experiment = _experiment(experiment_id)
    for text in labels:
        experiment.add_label(text)
        click.echo(f"Added label {text!r} to experiment {experiment_id}")


@label.command()
@experiment_id
@click.argument("labels", nargs=-1, required=True)
def remove(experiment_id: int, labels: tuple[str, ...]) -> None:
    """Remove labels."""
    experiment = _experiment(experiment_id)
    for text in labels:
        experiment.remove_label(text)
        click.echo(f"Removed label {text!r} from experiment {experiment_id}")
