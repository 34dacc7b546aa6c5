"""Find the value of an sbatch option that counts for a request, and its origin."""

from __future__ import annotations

import re
from typing import NamedTuple

from detslurm.config.sbatch_args import last_given
from detslurm.slurm.request import JobRequest
from detslurm.slurm.submit_environment import variables_of

_REFUSALS = (
    (r"invalid account", "account", "A"),
    (r"invalid qos", "qos", "q"),
    (r"reservation is invalid|invalid reservation", "reservation", None),
    (r"invalid feature", "constraint", "C"),
)


class ChosenOption(NamedTuple):
    """The value of an option, and its source."""

    value: str
    origin: str


def chosen_option(request: JobRequest, option: str, letter: str | None) -> ChosenOption | None:
    """The value that counts: of sbatch's variable where it is not removed, then of the script's
    last line, where the user's own options stand. None where nothing names the option."""
    variable = f"SBATCH_{option.upper()}"
    if value := variables_of(request).get(variable):
        return ChosenOption(value, f"{variable} of the shell that submitted the experiment")
    if value := last_given(request.sbatch_args, option, letter):
        return ChosenOption(value, "slurm.sbatch_args")
    if value := getattr(request, option, None):
        return ChosenOption(value, f"slurm.{option}")
    return None


def refused_option(message: str, request: JobRequest) -> str:
    """A sentence on the value that sbatch has refused; empty if its message is about none."""
    for pattern, option, letter in _REFUSALS:
        if not re.search(pattern, message, re.IGNORECASE):
            continue
        chosen = chosen_option(request, option, letter)
        if chosen is None:
            return f"The experiment names no {option}: Slurm has taken your default."
        return f"The {option} {chosen.value} comes from {chosen.origin}."
    return ""
