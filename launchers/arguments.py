"""The command line that all launchers share: `[[OVERRIDES...] --] (--trial TRIAL)|(SCRIPT...)`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_TRIAL = re.compile(r"[a-zA-Z0-9_.]+:[a-zA-Z0-9_]+")


class UsageError(Exception):
    """A command line that makes no sense; the text is for the user."""


class PlacementError(UsageError):
    """Options of a wrapped launcher that place processes."""

    def __init__(self, options: Sequence[str], instead: str) -> None:
        super().__init__(
            f"error: {', '.join(options)}: Slurm decides which processes run where, by"
            f" resources.slots_per_trial and slurm.slots_per_node, {instead}; leave it out"
        )


class LauncherArgs(NamedTuple):
    """The options of the wrapped launcher, and the command that every worker runs."""

    overrides: list[str]
    command: list[str]


def parse(argv: Sequence[str]) -> LauncherArgs:
    """Split a launcher's command line. Raises `UsageError`."""
    overrides, rest = _split(list(argv))
    trial, script = _trial(rest)
    if trial is not None:
        if script:
            raise UsageError(f"error: extra arguments to --trial: {script}")
        if not _TRIAL.fullmatch(trial):
            raise UsageError(f"error: argument --trial: expected MODULE:CLASS, not {trial!r}")
        return LauncherArgs(overrides, [sys.executable, "-m", "detslurm.pytorch.harness", trial])
    if not script:
        raise UsageError("error: empty script is not allowed")
    if script[0].startswith("-") and script[0] != "-m":
        raise UsageError(
            f"error: {script[0]} is not a script: options of the launcher end with `--`, as in"
            f" `{script[0]} ... -- train.py`"
        )
    return LauncherArgs(overrides, command_of(script))


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    # A `--` behind the script is the script's own, and so is what follows `-m module`.
    if argv[:1] == ["-m"] and not "".join(argv[1:2]).startswith("-"):
        return [], argv
    if argv and argv[0].startswith("-") and not _is_trial(argv[0]) and "--" in argv:
        border = argv.index("--")
        return argv[:border], argv[border + 1 :]
    return [], argv


def _is_trial(arg: str) -> bool:
    return arg == "--trial" or arg.startswith("--trial=")


def _trial(argv: list[str]) -> tuple[str | None, list[str]]:
    if not argv or not _is_trial(argv[0]):
        return None, argv
    if "=" in argv[0]:
        return argv[0].partition("=")[2], argv[1:]
    if len(argv) < 2:
        raise UsageError("error: argument --trial: expected one argument")
    return argv[1], argv[2:]


def command_of(script: Sequence[str]) -> list[str]:
    """The worker's command: a Python file or `-m module` is run by this Python."""
    first = script[0]
    if first == "-m" or (first.endswith(".py") and not _executable(first)):
        return [sys.executable, *script]
    return list(script)


def _executable(name: str) -> bool:
    # `./train.py` with a shebang and the right to be executed is a command like any other.
    path = Path(name)
    return "/" in name and path.exists() and bool(path.stat().st_mode & 0o111)
