"""Ids on the command line, and the client that commands work with.

Wherever an id goes, `last` and `@-1` are the newest, `@-2` is the one before; an experiment's name
or a glob of names does, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from detslurm.cli.failures import print_expected
from detslurm.cli.lazy import completed_by
from detslurm.cli.output.printing import print_json, warn
from detslurm.cli.output.progress import steps
from detslurm.cli.session import session
from detslurm.sdk.client import Client
from detslurm.sdk.experiments import finding

if TYPE_CHECKING:
    from detslurm.sdk.experiments.experiment import Experiment
    from detslurm.sdk.jobs.job import JobKind
    from detslurm.sdk.trials.trial import Trial

Command = TypeVar("Command", bound=Callable[..., Any])
Name = TypeVar("Name")
Id = TypeVar("Id")
_JOB = re.compile(r"\d+(_.*)?", re.ASCII | re.DOTALL)


def client() -> Client:
    """The client of the user's store; warnings and progress go to stderr."""
    found = Client(warn=warn)
    found.progress = steps
    session().client = found
    return found


def experiments_of(word: str) -> list[int]:
    """The ids of the experiments that a word stands for. Raises BadParameter, NotFound."""
    return _parsed(finding.experiments_of, word)


def experiment_of(word: str) -> int:
    """The id of the one experiment that a word stands for.

    Raises BadParameter, NotFound, and LifecycleError for a word that may mean several.
    """
    return _parsed(finding.experiment_of, word)


def task_of(kind: str, word: str) -> int:
    """The id of the task of a kind that a word stands for. Raises as `experiment_of`."""
    return _parsed(lambda mine, text: finding.experiment_of(mine, text, kind), word)


def task_id(kind: str) -> Callable[[Command], Command]:
    """The argument `task_id` of commands on the tasks of a kind; `last` is the newest of these."""
    return _argument("task_id", "ID", _one(partial(task_of, kind)))


def several_tasks(kind: str) -> Callable[[Command], Command]:
    """The argument `ids` of such commands."""
    return _argument("ids", "ID...", several(lambda word: [task_of(kind, word)]))


def trial_of(word: str) -> int:
    """The id of the trial that a word stands for. Raises BadParameter, NotFound."""
    return _parsed(finding.trial_of, word)


def _parsed(parse: Callable[[Client, str], Id], word: str) -> Id:
    try:
        return parse(client(), word)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _trials_of(word: str) -> list[int]:
    return [trial_of(word)]


def job_or_experiment(word: str, *, experiment: bool, job: bool) -> tuple[str, JobKind]:
    """A number and its meaning, from a job's or an experiment's id, `last` or an experiment's name.

    Raises BadParameter, NotFound, and UsageError if both meanings are chosen.
    """
    if experiment and job:
        raise click.UsageError("give either --experiment or --job")
    text = word.strip()
    if job or (not experiment and _JOB.fullmatch(text)):
        return text, "job" if job else "any"
    return str(experiment_of(text)), "experiment"


def _one(parse: Callable[[str], int]) -> Callable[..., Any]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        return value if ctx.resilient_parsing or value is None else parse(value)

    return callback


def several(parse: Callable[[str], Iterable[object]]) -> Callable[..., Any]:
    """A callback that takes `3 4,5` as 3, 4, 5, each once; an empty tuple where nothing is given.

    An empty argument, such as a variable that is not set, is refused: it does not mean all.
    """

    def callback(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> Any:
        if ctx.resilient_parsing or not value:
            return value
        parts = [part for word in value for part in word.split(",") if part.strip()]
        if not parts:
            raise click.BadParameter("no id given")
        return list(dict.fromkeys(number for part in parts for number in parse(part)))

    return callback


def _argument(
    name: str,
    metavar: str,
    callback: Callable[..., Any],
    kind: str = "experiments",
    *,
    required: bool = True,
) -> Callable[[Command], Command]:
    """An argument of ids that Tab completes by their kind: several where they are called `ids`."""
    return click.argument(
        name,
        metavar=metavar,
        nargs=-1 if name == "ids" else 1,
        required=required,
        callback=callback,
        shell_complete=completed_by(kind),
    )


experiment_id = _argument("experiment_id", "ID", _one(experiment_of))
trial_id = _argument("trial_id", "TRIAL_ID", _one(trial_of), "trials")
several_ids = _argument("ids", "ID...", several(experiments_of))
several_trials = _argument("ids", "TRIAL_ID...", several(_trials_of), "trials")
any_experiments = _argument("ids", "[ID]...", several(experiments_of), required=False)


def either_kind(command: Command) -> Command:
    """`-e` and `-j`: the meaning of a number that is an experiment's and a job's."""
    return together(
        click.option(
            "-e", "--experiment", is_flag=True, help="Take the number as an experiment's."
        ),
        click.option("-j", "--job", "is_job", is_flag=True, help="Take the number as a job's."),
    )(command)


def any_trials(text: str) -> Callable[[Command], Command]:
    """`-t TRIAL_ID` several times; `text` is its help."""
    return click.option(
        "-t",
        "--trial",
        "trials",
        metavar="TRIAL_ID",
        multiple=True,
        callback=several(_trials_of),
        help=text,
        shell_complete=completed_by("trials"),
    )


def trial_option(text: str) -> Callable[[Command], Command]:
    """`-t TRIAL_ID` for commands on experiments; `text` is its help."""
    return click.option(
        "-t",
        "--trial",
        "trial_id",
        metavar="TRIAL_ID",
        callback=_one(trial_of),
        help=text,
        shell_complete=completed_by("trials"),
    )


def together(*parameters: Callable[..., Any]) -> Callable[[Command], Command]:
    """Several arguments and options as one decorator, in the order of the help."""

    def decorate(command: Command) -> Command:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return decorate


def for_each(
    ids: Iterable[int],
    act: Callable[[Experiment], str],
    *,
    as_json: bool,
    deleted: bool = False,
) -> None:
    """Do something with each experiment and print the result; one failure stops no other.

    As JSON it is a list: of each id whether it was done, and the message. `deleted` takes those
    that were deleted before, too. The exit status is 1 after any failure.
    """
    mine = client()
    report_each(
        "id", ids, lambda number: act(mine.stored(number, deleted=deleted)), as_json=as_json
    )


def for_each_trial(ids: Iterable[int], act: Callable[[Trial], str], *, as_json: bool) -> None:
    """Do something with each trial; as `for_each`."""
    mine = client()
    report_each("id", ids, lambda number: act(mine.stored_trial(number)), as_json=as_json)


def report_each(
    key: str, names: Iterable[Name], act: Callable[[Name], str], *, as_json: bool
) -> None:
    """Do something with each of `names` and print the result; as `for_each`.

    In JSON each of them stands under `key`.
    """
    results = []
    for name in names:
        try:
            text, done = act(name), True
        except Exception as error:
            text, done = print_expected(error), False
        results.append({key: name, "done": done, "message": text})
        if done and not as_json:
            click.echo(text)
    if as_json:
        print_json(results)
    if not all(one["done"] for one in results):
        raise click.exceptions.Exit(1)
