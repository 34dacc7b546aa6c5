"""Begins a session of a shell: the user's login shell in the environment of the job.

sshd gives a session an environment of its own. It starts this program, which puts the job's in
its place. Nothing is imported but what the interpreter has in itself, because a person waits.
"""

import os
import sys

_ITS_OWN = ("SSH_", "DISPLAY")
"""How variables begin that a session has by itself, or not at all."""
_FIRST = (*_ITS_OWN, "SHELL", "TERM", "COLORTERM", "LANG", "LC_")
"""How those begin whose value in the session counts before the job's."""


def session_environment(job: "dict[str, str]", session: "dict[str, str]") -> "dict[str, str]":
    """The job's environment, with what belongs to the session."""
    kept = {name: value for name, value in job.items() if not name.startswith(_ITS_OWN)}
    first = {name: value for name, value in session.items() if name.startswith(_FIRST)}
    first.pop("SSH_ORIGINAL_COMMAND", None)
    return {**kept, **first}


def session_argv(shell: str, command: "str | None") -> "list[str]":
    """The command of a session. The shell is no login shell: many profiles set a new PATH."""
    name = os.path.basename(shell)  # noqa: PTH119 (pathlib is no part of the interpreter)
    return [name] if command is None else [name, "-c", command]


def read_environment(path: str) -> "dict[str, str]":
    """The variables of a file that holds what `file_content` returned."""
    with open(path, "rb") as file:  # noqa: PTH123 (the same)
        entries = file.read().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def file_content(environment: "dict[str, str]") -> bytes:
    """The content of a file of variables: values hold any character but NUL."""
    return b"\0".join(os.fsencode(f"{name}={value}") for name, value in environment.items())


def main(argv: "list[str]") -> None:
    """Become the session's shell, by the file of the job's environment and a directory."""
    environment = session_environment(read_environment(argv[0]), dict(os.environ))
    try:
        os.chdir(argv[1])
    except OSError as error:
        print(f"detslurm: {argv[1]}: {error.strerror}", file=sys.stderr)
    shell = environment.get("SHELL") or "/bin/sh"
    words = session_argv(shell, os.environ.get("SSH_ORIGINAL_COMMAND"))
    os.execve(shell, words, environment)


if __name__ == "__main__":
    main(sys.argv[1:])
