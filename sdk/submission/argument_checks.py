"""Check the arguments of an entrypoint against its code: its files, and its `--help`."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detslurm.config import ExperimentConfig
from detslurm.config.argument_rules import possible_values
from detslurm.config.arguments import arguments_of, form_of
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.context import ContextFiles
from detslurm.sdk.submission.entrypoint import PythonCommand, python_command

# A script that ignores --help would train here: only code that names a parser is asked.
_PARSERS = re.compile(
    r"^\s*(?:import|from)\b[^\n#]*\b(?:argparse|click|typer|fire|tyro|jsonargparse|simple_parsing"
    r"|absl|docopt|configargparse|HfArgumentParser|LightningCLI)\b",
    re.IGNORECASE | re.MULTILINE,
)
_OPTION = re.compile(r"(?<![\w-])--(?:\[no-?\])?([A-Za-z][\w.-]*)")
_PATIENCE = 60.0  # seconds, for the imports of a script


def file_problems(config: ExperimentConfig, files: Mapping[str, Path]) -> list[str]:
    """Return why the file of the hyperparameters can't be written; empty if it can."""
    arguments = config.arguments
    name = None if arguments is None or isinstance(arguments, str) else arguments.file
    if name is None or os.path.normpath(name) not in files:
        return []
    return [
        f"arguments.file: the code has a file {name}, which it would replace: name another file"
    ]


def refuse_flags(config: ExperimentConfig, context: ContextFiles, context_dir: Path) -> None:
    """Raise `SubmitError` for flags that the `--help` of the script lacks. It runs the script with
    `--help` on this machine. Where that shows nothing, nothing is refused."""
    files = {file.name: file.source for file in context.files}
    plain = config.to_dict()
    flags = [] if plain["arguments"] is None else _flags(plain)
    command = python_command(config.entrypoint, files) if flags else None
    if command is None or not _PARSERS.search(command.source.read_text(errors="replace")):
        return
    known = _options(_help(command, context_dir))
    lacking = [flag for flag in flags if known and known.isdisjoint(_with_outer(flag))]
    if lacking:
        names = ", ".join(f"--{flag}" for flag in lacking)
        raise SubmitError(
            f"arguments: {command.name} doesn't take {names}, as its --help shows: rename the"
            " hyperparameters, or choose another form of arguments"
        )


def _flags(config: Mapping[str, Any]) -> list[str]:
    form = form_of(config["arguments"])
    if form == "hydra":
        return []
    if isinstance(form, str) and form != "flags":
        words = shlex.split(form)
    else:
        words = arguments_of(form, {})
        for path, value in possible_values(config["hyperparameters"]):
            sample: Any = True if value is False else value
            for name in reversed(path):
                sample = {name: sample}
            words += arguments_of(form, sample)
    found = [match[1] for word in words if (match := re.match(r"--([A-Za-z][^\s={]*)", word))]
    return list(dict.fromkeys(found))


def _help(command: PythonCommand, context_dir: Path) -> str:
    env = {**os.environ, "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1", "PAGER": "cat"}
    options: Any = {"encoding": "utf-8", "errors": "replace", "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(
            [*command.argv, "--help"],
            **options,
            cwd=context_dir,
            env=env,
            timeout=_PATIENCE,
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return str(done.stdout)


def _options(text: str) -> set[str]:
    return {_plain(name) for name in _OPTION.findall(text)} - {"help"}


def _with_outer(flag: str) -> set[str]:
    """A flag and those around it: the help of a LightningCLI names `--model` alone."""
    parts = _plain(flag).split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


def _plain(name: str) -> str:
    """Parsers take the underscores of Python's names for hyphens."""
    return name.rstrip(".-").replace("_", "-")
