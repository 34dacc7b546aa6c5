"""Commands that control experiments: pause, activate, cancel, kill and the like."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from detslurm.cli.arguments.ids import client, for_each, several_ids
from detslurm.cli.arguments.seconds import Seconds
from detslurm.cli.experiment.description import failure_excerpt
from detslurm.cli.experiment.diagnostics import unknown_metric
from detslurm.cli.output.printing import Document, describes, json_option, note, size
from detslurm.cli.output.waiting import waiting
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments import polling
from detslurm.sdk.parts import StoreError

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment


def _command(name: str, do: Callable[[Experiment], object], done: str, text: str) -> click.Command:
    """A command that does something with each experiment; False from `do` is an earlier end."""

    def act(experiment: Experiment) -> str:
        if do(experiment) is False:
            return f"Experiment {experiment.id} has already ended: {experiment.state}"
        return f"{done} experiment {experiment.id}"

    @click.command(name, help=text)
    @several_ids
    @json_option
    def command(ids: list[int], as_json: bool) -> None:
        for_each(ids, act, as_json=as_json)

    return command


pause = _command(
    "pause",
    lambda one: one.pause(),
    "Paused",
    """Checkpoint running trials and free their nodes; hold the jobs in the queue.

    Several ids are separated by spaces or commas.

    \b
    Examples:
      detslurm experiment pause 7
      detslurm experiment pause 7 8,9
    """,
)
activate = _command(
    "activate",
    lambda one: one.activate(),
    "Activated",
    """Resume paused experiments from their checkpoints.

    Held jobs are released, and trials whose jobs are gone get new ones.

    \b
    Examples:
      detslurm experiment activate 7
    """,
)
cancel = _command(
    "cancel",
    lambda one: one.cancel(),
    "Canceled",
    """Checkpoint running trials, then end the experiment. It can't be resumed.

    \b
    Examples:
      detslurm experiment cancel 7
    """,
)
kill = _command(
    "kill",
    lambda one: one.kill(),
    "Killed",
    """End the experiment at once. It can't be resumed; completed checkpoints are kept.

    \b
    Examples:
      detslurm experiment kill 7 8,9
    """,
)
archive = _command(
    "archive",
    lambda one: one.archive(),
    "Archived",
    """Hide finished experiments from lists; `list --all` shows them.

    \b
    Examples:
      detslurm experiment archive 7
    """,
)
unarchive = _command(
    "unarchive",
    lambda one: one.unarchive(),
    "Unarchived",
    "Show archived experiments in lists again.",
)


@click.command()
@several_ids
@click.option("-y", "--yes", is_flag=True, help="Delete without asking for confirmation.")
@click.option(
    "--force",
    is_flag=True,
    help="Delete them even if a checkpoint storage can't be seen from here: files stay there.",
)
@json_option
def delete(ids: list[int], yes: bool, force: bool, as_json: bool) -> None:
    """Delete finished experiments with their checkpoints, logs, metrics and code.

    It asks first, with their names and what it frees; a deletion that was interrupted can be
    repeated.

    \b
    Examples:
      detslurm experiment delete 7
      detslurm experiment delete 7 8,9 --yes
    """
    what = "experiment" if len(ids) == 1 else "experiments"
    if not yes and not click.confirm(_question(what, ids), err=True):
        note(f"Aborting {what} deletion.")
        raise click.exceptions.Exit(1)

    def act(experiment: Experiment) -> str:
        freed = _size_of(experiment)
        experiment.delete(force=force)
        return f"Deleted experiment {experiment.id}{f', freeing {size(freed)}' if freed else ''}"

    for_each(ids, act, as_json=as_json, deleted=True)


def _size_of(experiment: Experiment) -> int:
    """The disk usage of an experiment, as far as readable; 0 where it was half deleted before."""
    try:
        return 0 if experiment.state == "DELETED" else experiment.disk_usage().total
    except StoreError:
        return 0


def _question(what: str, ids: list[int]) -> str:
    """Ids with names, for an id is easily mistyped, and what they take together."""
    mine, named, total = client(), [], 0
    for number in ids:
        named.append(str(number))
        with contextlib.suppress(StoreError):  # the deletion reports it
            experiment = mine.stored(number, deleted=True)
            named[-1] += f" {experiment.name!r}"
            total += _size_of(experiment)
    question = f"Delete {what} {', '.join(named)} permanently, with all checkpoints?"
    return f"{question} This frees {size(total)}." if total else question


@click.command()
@several_ids
@click.option(
    "--polling-interval",
    default=5.0,
    show_default=True,
    type=Seconds(min=0.1),
    metavar="SECONDS",
    help="Read the store after pauses that grow to SECONDS seconds.",
)
@describes
def wait(ids: list[int], polling_interval: float) -> Document:
    """Wait until experiments have ended or are paused.

    The exit status is 0 only if all are COMPLETED. Progress is printed on stderr: a bar on a
    terminal, elsewhere a line when the state changes and one a minute.

    \b
    Examples:
      detslurm experiment wait 7 && python3 evaluate.py
      detslurm experiment wait 7 8,9
    """
    mine = client()
    ended = [_ended(mine.experiment(number), polling_interval) for number in ids]
    return Document(
        lambda: "\n".join(map(_end_text, ended)),
        lambda: ended if len(ended) > 1 else ended[0],
        failed=any(one["state"] != "COMPLETED" for one in ended),
    )


def _end_text(one: dict[str, Any]) -> str:
    why = "" if one["reason"] is None else f": {one['reason']}"
    return f"Experiment {one['id']} is {one['state']}{why}"


def _ended(experiment: Experiment, polling_interval: float) -> dict[str, Any]:
    """Wait until it has ended or is paused, and return its id, state and reason."""
    with waiting() as show:

        def report(text: str) -> None:
            show(experiment.state, text, experiment.view.progress)

        state = polling.wait(experiment, interval=polling_interval, report=report)
    _note_failed_start(experiment)
    if state == "COMPLETED" and (text := unknown_metric(experiment)) is not None:
        note(text)
    return {"id": experiment.id, "state": state, "reason": experiment.reason}


def _note_failed_start(experiment: Experiment) -> None:
    """Show what ended a job before its run began, as `describe` does; of the first such trial."""
    if experiment.state != "ERROR":
        return

    failed = [trial for trial in experiment.trials() if trial.state == "ERROR"]
    with contextlib.suppress(LifecycleError):  # a search may have made no trial
        failed = failed or [experiment.first_trial()]
    first = next((trial for trial in failed if trial.row.run_count == 0), None)
    for line in failure_excerpt(first) if first is not None else ():
        note(line)
