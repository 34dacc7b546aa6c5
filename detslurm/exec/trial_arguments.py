"""A trial's hyperparameters as arguments of its entrypoint, on a node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from detslurm.config.arguments import argument_file, arguments_of, form_of
from detslurm.config.run_config import RunConfig
from detslurm.config.secret_texts import masked_words
from detslurm.exec.environment import with_secrets


class TrialArguments(NamedTuple):
    """The words for the entrypoint, and a line without secrets for the log."""

    words: list[str]
    shown: str


def arguments_of_trial(config: RunConfig, recorded: Mapping[str, Any]) -> TrialArguments:
    """Return the arguments of these hyperparameters. Raises `ValueError` for a missing name."""
    form = form_of(config.arguments)
    hparams = with_secrets(recorded, config.hyperparameters)
    shown = shlex.join(masked_words(arguments_of(form, recorded)))
    return TrialArguments(arguments_of(form, hparams), shown)


def write_file(config: RunConfig, recorded: Mapping[str, Any], workdir: Path) -> None:
    """Write the file that the arguments name, if any. Raises `OSError`."""
    form = form_of(config.arguments)
    file = argument_file(form, with_secrets(recorded, config.hyperparameters))
    if file is not None:
        path = workdir / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8")
