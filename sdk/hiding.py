"""Hiding a configuration's secrets in what programs print, such as logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from detslurm.config.masking import MASK, secrets_of
from detslurm.store import ExperimentDir

_SHORTEST: Final = 6  # a shorter one would be found in words that are none


def secrets_in(directory: ExperimentDir, masked: Mapping[str, Any]) -> list[bytes] | None:
    """What the masked configuration leaves out, in each form that a program may print it in; None
    for those who see the masked one alone."""
    values = set(secrets_of(directory.config(), masked))
    if any(MASK in value for value in values):
        return None
    bare = {form for value in values for form in (value, value.strip("\"'"), *value.splitlines())}
    forms = {form for value in bare for form in (value, json.dumps(value)[1:-1])}
    return sorted((s.encode() for s in forms if len(s) >= _SHORTEST), key=len, reverse=True)


def hidden(data: bytes, secrets: Sequence[bytes]) -> bytes:
    """What was printed, with asterisks in the place of secrets."""
    for secret in secrets:
        data = data.replace(secret, MASK.encode())
    return data
