"""Messages for expected errors."""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from detslurm.cli.output.printing import print_error
from detslurm.sdk.errors import LifecycleError, SubmitError
from detslurm.sdk.parts import ConfigErrors, NotFound, Refused, SlurmError, StoreError


class ErrorMessage(NamedTuple):
    """The message, what kind of error it is, and the exit status."""

    text: str
    kind: str
    exit_code: int = 1


def described(error: Exception) -> ErrorMessage | None:
    """The message for an expected error, None for a fault of our own."""
    if isinstance(error, click.ClickException):
        return ErrorMessage(_usage_text(error), "usage", error.exit_code)
    if isinstance(error, ConfigErrors):
        return ErrorMessage(str(error), "config", 2)
    if isinstance(error, SubmitError):
        return ErrorMessage(str(error), "refused", getattr(error, "exit_code", 1))
    kinds = {
        LifecycleError: "refused",
        SlurmError: "slurm",
        NotFound: "not_found",
        Refused: "refused",
        StoreError: "store",
    }
    for known, kind in kinds.items():
        if isinstance(error, known):
            return ErrorMessage(str(error), kind)
    return ErrorMessage(_io(error), "io") if isinstance(error, OSError) else None


def print_expected(error: Exception) -> str:
    """Print the message for an expected error, and return it; a fault of our own is raised."""
    known = described(error)
    if known is None:
        raise error
    print_error(known.text, known.kind)
    return known.text


def _usage_text(error: click.ClickException) -> str:
    """The fault of a command line; for an option with a few values, these values."""
    option = error.param if isinstance(error, click.BadParameter) else None
    if not isinstance(option, click.Option) or not isinstance(option.type, click.Choice):
        return error.format_message()
    name, values = max(option.opts, key=len), ", ".join(map(str, option.type.choices))
    if isinstance(error, click.MissingParameter):
        return f"{name} is missing: give one of {values}"
    given, is_other, _ = error.message.partition(" is not one of ")
    return f"{name} {given}: give one of {values}" if is_other else error.format_message()


def usage(error: Exception) -> str:
    """The lines about the command that stand before the message of a wrong command line."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return ""
    hint = f"Try '{context.command_path} --help' for help."
    return f"{context.command.get_usage(context)}\n{hint}\n"


def _io(error: OSError) -> str:
    text = error.strerror or str(error)
    if not isinstance(error.filename, (str, bytes)):
        return text
    return f"{os.fsdecode(error.filename)}: {text}"
