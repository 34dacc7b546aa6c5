"""Look before queueing: what would fail hours later in the queue is said now."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detslurm.sdk.context import ContextFiles

_PYTHON = re.compile(r"(.*/)?python(\d(\.\d+)?)?")
_SHELL_SYNTAX = set("|&;<>()$`\\\"'*?[#~=%{\n")


def entrypoint_problems(
    entrypoint: str | Sequence[str] | None, context: ContextFiles, *, prepared: bool
) -> list[str]:
    """What is wrong with an entrypoint, as far as can be told from here.

    `prepared` says that the environment of the job differs from this one (setup lines, modules, a
    container, a startup hook), so that a command that is missing here may exist there.
    """
    if entrypoint is None:
        return ["managed experiments require an entrypoint: the command that trains"]
    words = _words(entrypoint)
    if not words:
        return [] if isinstance(entrypoint, str) and entrypoint.strip() else ["entrypoint is empty"]
    problems = []
    names = {file.name for file in context.files}
    command, *args = words
    if "/" not in command and not prepared and shutil.which(command, path=_path()) is None:
        problems.append(f"entrypoint: there is no command {command!r} in PATH")
    if command.startswith("./") and command[2:] not in names and not prepared:
        problems.append(_missing(command[2:], names))
    script = _python_script(command, args)
    if script is not None and not script.startswith("/"):
        name = script.removeprefix("./")
        if name not in names and not prepared:
            problems.append(_missing(name, names))
    legacy = re.fullmatch(r"([\w.]+):\w+", command) if len(words) == 1 else None
    if legacy:
        name = legacy[1].replace(".", "/")
        if f"{name}.py" not in names and f"{name}/__init__.py" not in names:
            return [_missing(f"{name}.py", names)]
        return []
    return problems


def sampler_problems(config: Mapping[str, Any]) -> list[str]:
    """Why Optuna, as this Python has it, can't draw the samples that a configuration asks for."""
    if config["searcher"]["name"] != "optuna":
        return []
    question = {
        "searcher": config["searcher"],
        "space": config["hyperparameters"],
        "seed": config["reproducibility"]["experiment_seed"],
        "history": {},
        "wanted": [0],
    }
    # What a job does for its first trial; in a process of its own, for Optuna is heavy.
    argv = [sys.executable, "-P", "-m", "detslurm.exec.sampling"]
    done = subprocess.run(
        argv, input=json.dumps(question), capture_output=True, text=True, check=False
    )
    try:
        problem = json.loads(done.stdout).get("error")
    except ValueError:
        problem = done.stderr.strip() or f"the sampler ended with status {done.returncode}"
    return [] if problem is None else [str(problem)]


def _path() -> str:
    # The batch script puts the submitting Python's directory first, activated or not.
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _words(entrypoint: str | Sequence[str]) -> list[str]:
    if not isinstance(entrypoint, str):
        return list(entrypoint)
    # Anything that needs a shell to be understood is left to the shell.
    if _SHELL_SYNTAX & set(entrypoint):
        return []
    return shlex.split(entrypoint)


def _python_script(command: str, args: Sequence[str]) -> str | None:
    if not _PYTHON.fullmatch(command):
        return None
    for arg in args:
        if arg in ("-m", "-c") or arg == "-":
            return None
        if not arg.startswith("-"):
            return arg
    return None


def _missing(name: str, names: set[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"entrypoint: there is no file {name!r} in the context directory{hint}"
