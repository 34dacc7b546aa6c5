"""Check a template when it is written: as far as a part of a configuration can be checked."""

from __future__ import annotations

from detslurm.config.checking import Checker
from detslurm.config.errors import ConfigErrors
from detslurm.config.layers import as_mapping, order
from detslurm.config.reading import parse
from detslurm.config.schema.experiment import ExperimentConfig


def check_template(text: str, name: str) -> None:
    """Raise ConfigErrors with every problem of a template's YAML; `name` stands in messages."""
    checker = Checker(complete=False).check(as_mapping(parse(text, name)), ExperimentConfig)
    if checker.problems:
        raise ConfigErrors(order(checker.problems))
