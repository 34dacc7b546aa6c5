"""Commands that make an experiment out of another: continue, fork, rerun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from detslurm.cli.arguments.ids import client, experiment_id, together, trial_option
from detslurm.cli.output.printing import json_option
from detslurm.cli.submission import config_options
from detslurm.cli.submission.submit import follow as _follow
from detslurm.cli.submission.submit import from_checkpoint as _from_checkpoint
from detslurm.cli.submission.submit import paused as _paused
from detslurm.cli.submission.submit import refuse_both, report

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
_common = together(
    experiment_id, config_options.overrides, _config_file, _paused, _follow, json_option
)


@click.command("continue")
@_common
@_context
@trial_option("Continue this trial alone, with its hyperparameters.")
def continue_experiment(experiment_id: int, **given: Any) -> None:
    """Train on with a finished, canceled or failed experiment, from its latest checkpoints.

    It becomes a new experiment, linked to this one, which stays as it is. Its trials go on
    counting, and their curves begin with the training before. The code is that which ran. A search
    by results goes on with more trials, a longer length or more rounds.

    \b
    Examples:
      detslurm experiment continue 7 --config searcher.max_length.batches=2000
      detslurm experiment continue 7 --config searcher.max_trials=200
      detslurm experiment continue 7 --trial 12 --config searcher.max_length.epochs=50
      detslurm experiment continue 7 --context . -f
    """
    _submit(experiment_id, "continue_", f"Continued experiment {experiment_id} as", **given)


@click.command()
@_common
@_context
@_from_checkpoint
def fork(experiment_id: int, **given: Any) -> None:
    """Submit a new experiment with the configuration and the code of another one.

    If both have one trial, it begins with a copy of the other's outputs.

    \b
    Examples:
      detslurm experiment fork 7 --config hyperparameters.learning_rate=0.01
      detslurm experiment fork 7 --from-checkpoint 0f3a0a6e
      detslurm experiment fork 7 --context .
    """
    _submit(experiment_id, "fork", f"Forked experiment {experiment_id} as", **given)


@click.command()
@_common
def rerun(experiment_id: int, **given: Any) -> None:
    """Run an experiment again from the beginning: the same configuration, code and seeds.

    \b
    Examples:
      detslurm experiment rerun 7
      detslurm experiment rerun 7 --config reproducibility.experiment_seed=2
    """
    _submit(experiment_id, "rerun", f"Running experiment {experiment_id} again as", **given)


def _submit(
    number: int,
    how: Literal["continue_", "fork", "rerun"],
    what: str,
    *,
    overrides: Sequence[str],
    config_file: Path | None,
    follow: bool,
    as_json: bool,
    **own: Any,
) -> None:
    """Call the method of the experiment; `own` are the options that its command alone has."""
    refuse_both(follow, as_json)
    mine = client()
    # Whether it is over decides whether it can be continued: that takes a look at the queue.
    parent = mine.experiment(number) if how == "continue_" else mine.stored(number)
    done = getattr(parent, how)(overrides, config=config_file, **own).submission
    report(done, f"{what} experiment {done.experiment_id}", as_json=as_json)
    if follow:
        from detslurm.cli.submission.follow import follow_first_trial

        if not follow_first_trial(mine, done.experiment_id):
            raise click.exceptions.Exit(1)
