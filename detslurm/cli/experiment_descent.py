"""Commands that make an experiment out of another one: continue, fork, rerun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from detslurm.cli import config_options
from detslurm.cli.ids import client, experiment_id, trial_option
from detslurm.cli.output import json_option
from detslurm.cli.submit import follow as _follow
from detslurm.cli.submit import from_checkpoint as _from_checkpoint
from detslurm.cli.submit import paused as _paused
from detslurm.cli.submit import refuse_both, report

if TYPE_CHECKING:
    from detslurm.sdk.client import Client
    from detslurm.sdk.submission.submit import Submission

Command = TypeVar("Command", bound=Callable[..., Any])

_config_file = click.option(
    "--config-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Merge this YAML file over the experiment's configuration.",
)
_context = click.option(
    "--context",
    "context_dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Take the code from DIR, instead of that which the experiment ran.",
)


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_common = _options(
    experiment_id, config_options.overrides, _config_file, _paused, _follow, json_option
)


@click.command("continue")
@_common
@_context
@trial_option("Continue this trial alone, with its hyperparameters.")
def continue_experiment(
    experiment_id: int,
    overrides: tuple[str, ...],
    config_file: Path | None,
    paused: bool,
    follow: bool,
    as_json: bool,
    context_dir: Path | None,
    trial_id: int | None,
) -> None:
    """Train on with a finished, canceled or failed experiment, from its latest checkpoints.

    It becomes a new experiment, linked to this one, which stays as it is. Its trials go on
    counting, and their curves begin with what was trained before. The code is that which ran.

    \b
    Examples:
      detslurm experiment continue 7 --config searcher.max_length.batches=2000
      detslurm experiment continue 7 --trial 12 --config searcher.max_length.epochs=50
      detslurm experiment continue 7 --context . -f
    """
    refuse_both(follow, as_json)
    mine = client()
    done = mine.experiment(experiment_id).continue_(
        overrides,
        config=config_file,
        trial_id=trial_id,
        context_dir=context_dir,
        paused=paused,
    )
    _finish(mine, f"Continued experiment {experiment_id} as", done, follow, as_json)


@click.command()
@_common
@_context
@_from_checkpoint
def fork(
    experiment_id: int,
    overrides: tuple[str, ...],
    config_file: Path | None,
    paused: bool,
    follow: bool,
    as_json: bool,
    context_dir: Path | None,
    from_checkpoint: str | None,
) -> None:
    """Submit a new experiment with the configuration and the code of another one.

    \b
    Examples:
      detslurm experiment fork 7 --config hyperparameters.learning_rate=0.01
      detslurm experiment fork 7 --from-checkpoint 0f3a0a6e
      detslurm experiment fork 7 --context .
    """
    refuse_both(follow, as_json)
    mine = client()
    done = mine.stored(experiment_id).fork(
        overrides,
        config=config_file,
        from_checkpoint=from_checkpoint,
        context_dir=context_dir,
        paused=paused,
    )
    _finish(mine, f"Forked experiment {experiment_id} as", done, follow, as_json)


@click.command()
@_common
def rerun(
    experiment_id: int,
    overrides: tuple[str, ...],
    config_file: Path | None,
    paused: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Run an experiment again from the beginning: the same configuration, code and seeds.

    \b
    Examples:
      detslurm experiment rerun 7
      detslurm experiment rerun 7 --config reproducibility.experiment_seed=2
    """
    refuse_both(follow, as_json)
    mine = client()
    done = mine.stored(experiment_id).rerun(overrides, config=config_file, paused=paused)
    _finish(mine, f"Running experiment {experiment_id} again as", done, follow, as_json)


def _finish(mine: Client, what: str, done: Submission, follow: bool, as_json: bool) -> None:
    report(done, f"{what} experiment {done.experiment_id}", as_json=as_json)
    if follow:
        from detslurm.cli.follow import follow_first_trial

        follow_first_trial(mine, done.experiment_id)
