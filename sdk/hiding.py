"""Hiding a configuration's secrets in what programs print, such as logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from detslurm.config import ExperimentConfig
from detslurm.config.masking import masked, secrets_of
from detslurm.config.secret_names import MASK
from detslurm.config.secret_texts import masked_forms
from detslurm.store import ExperimentDir

_SHORTEST: Final = 6  # a shorter one would be found in words that are none


def secrets_in(directory: ExperimentDir) -> list[bytes] | None:
    """The secrets that the masked configuration leaves out, in each form that a program may print;
    None for users who see only the masked configuration. The value of an environment variable
    counts only if the variable has a secret's name: `offline` or a path stand in every log."""
    plain = directory.config()
    if "environment" not in plain:  # of a script that was not submitted, which has few keys
        plain = ExperimentConfig.from_dict(plain).to_dict()
    values = set(secrets_of(plain, masked(plain, ExperimentConfig, variables=False)))
    if any(MASK in value for value in values):
        return None
    bare = {form for value in values for form in (value, value.strip("\"'"), *value.splitlines())}
    forms = {form for value in bare for form in (value, json.dumps(value)[1:-1])}
    return sorted((s.encode() for s in forms if len(s) >= _SHORTEST), key=len, reverse=True)


def hidden(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """Printed text, with asterisks in place of these secrets, and of secrets by their form."""
    for secret in secrets:
        data = data.replace(secret, MASK.encode())
    text = data.decode("utf-8", "surrogateescape")
    return masked_forms(text).encode("utf-8", "surrogateescape")
