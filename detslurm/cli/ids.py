"""Ids on the command line, and the client that commands work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from detslurm.cli.output import print_json, warn

if TYPE_CHECKING:
    from detslurm.sdk.client import Client
    from detslurm.sdk.experiment import Experiment
    from detslurm.sdk.trial import Trial


def client() -> Client:
    """The client of the user's store; warnings go to stderr."""
    from detslurm.sdk.client import Client

    return Client(warn=warn)


def positive(word: str) -> int:
    """Parse an id. Raises BadParameter."""
    text = word.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 15 or int(text) < 1:
        raise click.BadParameter(f"{text!r} is not an id: ids are whole numbers from 1")
    return int(text)


def _one(ctx: click.Context, param: click.Parameter, value: str) -> int:
    return positive(value)


def _several(ctx: click.Context, param: click.Parameter, value: str | tuple[str, ...]) -> list[int]:
    """`3 4,5` as 3, 4, 5, each once."""
    words = (value,) if isinstance(value, str) else value
    found = [positive(part) for word in words for part in word.split(",") if part.strip()]
    if not found:
        raise click.BadParameter("no id given")
    return list(dict.fromkeys(found))


experiment_id = click.argument("experiment_id", metavar="ID", callback=_one)
trial_id = click.argument("trial_id", metavar="TRIAL_ID", callback=_one)
several_ids = click.argument("ids", metavar="ID...", nargs=-1, required=True, callback=_several)


def for_each(
    ids: Iterable[int],
    act: Callable[[Experiment], str],
    *,
    as_json: bool,
    query_queue: bool = False,
    deleted: bool = False,
) -> None:
    """Do something with each experiment and print what was done; one failure stops no other.

    As JSON it is a list: of each id whether it was done, and the message.
    `query_queue` asks the queue first; `deleted` takes those that were deleted before, too. The
    exit status is 1 after any failure.
    """
    mine = client()

    def one(number: int) -> str:
        experiment = mine.stored(number, deleted=deleted)
        return act(experiment.reload() if query_queue else experiment)

    _each(ids, one, as_json)


def for_each_trial(ids: Iterable[int], act: Callable[[Trial], str], *, as_json: bool) -> None:
    """Do something with each trial; as `for_each`."""
    mine = client()
    _each(ids, lambda number: act(mine.stored_trial(number)), as_json)


def _each(ids: Iterable[int], act: Callable[[int], str], as_json: bool) -> None:
    from detslurm.cli.failures import described

    results = []
    for number in ids:
        try:
            text, done = act(number), True
        except Exception as error:
            known = described(error)
            if known is None:
                raise
            text, done = known.text, False
        results.append({"id": number, "done": done, "message": text})
        if not done:
            click.secho(text, err=True, fg="red")
        elif not as_json:
            click.echo(text)
    if as_json:
        print_json(results)
    if not all(one["done"] for one in results):
        raise click.exceptions.Exit(1)
