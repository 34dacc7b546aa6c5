"""The command line of an entrypoint, in each of its documented forms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_LEGACY = r"[a-zA-Z0-9_.]+:[a-zA-Z0-9_]+"

# Where processes are tracked without cgroups, Slurm's SIGTERM at a preemption reaches the shell
# too, and so do the signals of `scancel --signal`: it has to outlive the command that it waits for.
# (A trap, unlike ignoring, is not inherited.)
OUTLIVE = "trap : HUP INT QUIT ALRM TERM USR1 USR2\n"
"""So begins the text of the shell that the agent starts for a text entrypoint."""

HOOK_FAILED = ".startup-hook-failed"
"""Has the exit status of a startup-hook.sh that failed; in the working directory."""

_PLAIN_LAUNCHER = re.compile(
    r"(?<![\w.-])(?:torchrun|accelerate|deepspeed)(?![\w.-])"
    r"|torch\.distributed\.(?:run|launch)\b|accelerate\.commands\.|deepspeed\.launcher\."
)
_SHELL_SCRIPT = re.compile(r"[\w./-]+\.(?:ba)?sh\b")

CANT_EXECUTE = 126
"""The exit status of a shell for a program that it may not execute."""

# The hook is sourced, so that what it exports reaches the entrypoint; a failing command in it ends
# the run instead of letting training start half prepared.
_WITH_HOOK = f"""
_detslurm_failed=$PWD/{HOOK_FAILED}
trap 'echo $? > "$_detslurm_failed"' EXIT
set -e; . ./startup-hook.sh; set +e
trap - EXIT
exec "$@"
"""


def entrypoint_argv(
    entrypoint: str | Sequence[str], arguments: Sequence[str] | None = None
) -> list[str]:
    """The argv of an entrypoint: a list is executed, a string goes to the shell.

    A string of the form `module:Class` is the legacy form of a Trial class. A list gets `arguments`
    appended. The shell gets them as positional parameters, and never parses them.
    """
    if not isinstance(entrypoint, str):
        return [*entrypoint, *(arguments or ())]
    if re.fullmatch(_LEGACY, entrypoint):
        launcher = ["python3", "-m", "detslurm.launch.torch_distributed"]
        return [*launcher, "--trial", entrypoint]
    if arguments is None:
        return ["sh", "-c", OUTLIVE + entrypoint]
    from detslurm.config.entrypoints import with_place  # only here: others pay nothing

    return ["sh", "-c", OUTLIVE + with_place(entrypoint), "sh", *arguments]


def names_plain_launcher(entrypoint: str | Sequence[str], workdir: Path) -> bool:
    """Whether an entrypoint, or a shell script that it names, starts another project's launcher."""
    text = entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint)
    scripts = (workdir / name for name in _SHELL_SCRIPT.findall(text))
    texts = (path.read_text(errors="replace") for path in scripts if path.is_file())
    return any(_PLAIN_LAUNCHER.search(part) for part in (text, *texts))


def with_startup_hook(argv: Sequence[str]) -> list[str]:
    """The same command behind `startup-hook.sh` of the working directory."""
    return ["bash", "-c", _WITH_HOOK, "startup-hook.sh", *argv]


def hook_failure(workdir: Path) -> str | None:
    """How `startup-hook.sh` of a working directory failed; None where it did not."""
    try:
        return f"startup-hook.sh exited with {int((workdir / HOOK_FAILED).read_text())}"
    except (OSError, ValueError):
        return None
