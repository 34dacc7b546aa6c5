"""`detslurm run` and `detslurm multirun`: experiments from a command line, without a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import click

from detslurm.cli.arguments.ids import client, together
from detslurm.cli.output.printing import json_option, note
from detslurm.cli.submission import submit
from detslurm.sdk.parts import as_yaml, load_experiment, load_site
from detslurm.sdk.submission import command_line

_follow = click.option(
    "-f/-d",
    "--follow/--no-follow",
    default=None,
    help="Print the log of the first trial until it ends, or return at once. Ctrl-C ends the"
    " printing alone. [default: follow]",
)
_options = together(
    click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED),
    click.option("--slots", type=int, help="Give each trial this many GPUs, or CPUs without GPUs."),
    click.option("--time", metavar="TIME", help="Limit each job: minutes, or 4:00:00."),
    click.option("--pool", metavar="NAME", help="Run in this partition."),
    click.option("--metric", metavar="NAME", help="Name the metric of a search. [default: loss]"),
    click.option("--maximize", is_flag=True, help="Take larger values of the metric for better."),
    submit.submit_options(_follow),
    click.option(
        "--print-config", is_flag=True, help="Print the experiment.yaml, and queue nothing."
    ),
    json_option,
)
_SETTINGS = {"allow_interspersed_args": False}
_SEARCHES = ["random", "grid", "async_halving", "adaptive_asha", "optuna", "pbt"]


class RunOptions(submit.SubmitOptions):
    """The options that both commands share."""

    slots: int | None
    time: str | None
    pool: str | None
    metric: str | None
    maximize: bool
    print_config: bool


@click.command(context_settings=_SETTINGS)
@click.option(
    "--grid",
    "grids",
    multiple=True,
    metavar="NAME=A,B,C",
    help="Take each of these values, with each of the others. Repeatable.",
)
@click.option(
    "--random",
    "randoms",
    multiple=True,
    metavar="NAME=SPEC",
    help="Draw values: log:LOW:HIGH, int:LOW:HIGH, double:LOW:HIGH, or choices A,B,C. Repeatable.",
)
@click.option("--trials", type=int, metavar="N", help="Train N trials in a search.")
@click.option(
    "--search",
    "search_name",
    type=click.Choice(_SEARCHES),
    help="Search by this method. [default: grid with --grid, random with --random]",
)
@click.option("--max-time", type=int, metavar="N", help="Stop a halving's best trials after N.")
@click.option(
    "--time-metric", metavar="UNIT", help="Count --max-time in batches, epochs or this metric."
)
@_options
def run(
    command: tuple[str, ...],
    grids: tuple[str, ...],
    randoms: tuple[str, ...],
    trials: int | None,
    search_name: str | None,
    max_time: int | None,
    time_metric: str | None,
    **options: Unpack[RunOptions],
) -> None:
    """Run COMMAND as an experiment, with the code of the current directory.

    Each value of a search reaches COMMAND as a flag, --NAME=VALUE, in place of the flag that
    COMMAND has; --config arguments=FORM chooses another form.

    \b
    Examples:
      detslurm run -- python3 train.py --lr 0.1 --epochs 5
      detslurm run --slots 2 --time 4:00:00 -- torchrun --nproc_per_node=2 train.py
      detslurm run --grid lr=0.1,0.01 --no-follow -- python3 train.py
      detslurm run --random lr=log:1e-4:1e-1 --trials 20 -- python3 train.py
      detslurm run --search optuna --metric f1 --trials 9 --random lr=log:1e-4:1 -- python3 train.py
    """
    if grids and randoms:
        raise click.UsageError(
            "--grid and --random can't be combined: --random NAME=A,B draws, too"
        )
    try:
        space = {**command_line.grid_space(grids), **command_line.random_space(randoms)}
        settled = command_line.without_flags(command, space)
        search = command_line.SearchOptions(
            search_name, options["metric"], options["maximize"], trials, time_metric, max_time
        )
        default = "grid" if grids else "random" if randoms else "single"
        searcher = command_line.searcher_section(search, default)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    _submit(settled, space, searcher, {"arguments": "flags"} if space else {}, options)


@click.command(context_settings=_SETTINGS)
@_options
def multirun(command: tuple[str, ...], **options: Unpack[RunOptions]) -> None:
    """Run a Hydra application once for each combination of values, as its own --multirun would.

    Sweeps have Hydra's syntax: lr=1,2 and 'model=choice(a,b)' and 'seed=range(0,5)'. All other
    arguments reach each run as they are. You can log out meanwhile.

    \b
    Examples:
      detslurm multirun python3 app.py lr=0.1,0.01 model=small,large
      detslurm multirun --slots 1 --pool gpu -- python3 -m app 'seed=range(0,5)' +debug=true
    """
    try:
        settled, space = command_line.hydra_command(command)
        if not space:
            raise ValueError("no argument has several values, such as lr=1,2: use `detslurm run`")
        search = command_line.SearchOptions(metric=options["metric"], maximize=options["maximize"])
        searcher = command_line.searcher_section(search, "grid")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    _submit(settled, space, searcher, {"arguments": "hydra"}, options)


def _submit(
    command: command_line.Command,
    space: command_line.Space,
    searcher: Mapping[str, Any],
    arguments: Mapping[str, str],
    options: RunOptions,
) -> None:
    """Submit the configuration that stands for a command, as `submit` would from a file."""
    config = {
        "name": command_line.name_of(command.entrypoint),
        "entrypoint": command.entrypoint,
        **({"hyperparameters": space} if space else {}),
        **arguments,
        "searcher": dict(searcher),
        **_sections(options),
    }
    overrides = [*options["overrides"], *submit.project_overrides(options["project"])]
    mine = client()
    loaded = load_experiment(
        config,
        overrides=overrides,
        template=options["template"],
        site=load_site(),
        root=mine.store.path,
    )
    text = as_yaml(loaded.given)
    for message in command.messages:
        note(message)
    if options["print_config"]:
        click.echo(text, nl=False)  # with its secrets, for it is to be submitted
        return
    # The configuration has these already.
    options |= {"overrides": (), "project": None, "template": None, "follow": _follows(options)}
    plan = submit.plan_of(mine, loaded.given, Path.cwd(), options)
    submit.carry_out(replace(plan, text=text), mine, options)


def _sections(options: RunOptions) -> dict[str, Any]:
    resources = {"slots_per_trial": options["slots"], "resource_pool": options["pool"]}
    given = {key: value for key, value in resources.items() if value is not None}
    time = options["time"]
    return {
        **({"resources": given} if given else {}),
        **({"slurm": {"time": int(time) if time.isdigit() else time}} if time is not None else {}),
    }


def _follows(options: RunOptions) -> bool:
    """Whether the log is followed: by default where there will be a log, and a person."""
    submit.refuse_both(options["follow"], options["as_json"])
    if options["follow"] is not None:
        return options["follow"]
    return not (options["as_json"] or options["paused"] or options["test_mode"])
