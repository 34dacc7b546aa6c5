"""`python -m detslurm.compat [--force] SCRIPT [ARGS...]`: run code written for Determined by hand.

`python -m detslurm.compat det ARGS...` runs a command of Determined's command line.

The script, or `-m MODULE`, runs in a fresh Python in which `import determined` works as in a job,
and so do the processes that it starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from detslurm._base import contract
from detslurm.compat import with_determined

_USAGE = """\
usage: python -m detslurm.compat [--force] (SCRIPT | -m MODULE) [ARGS...]
       python -m detslurm.compat det COMMAND [ARGS...]"""


def interpreter_options(orig_argv: Sequence[str], argv: Sequence[str]) -> list[str]:
    """The words between the interpreter and `-m detslurm.compat` on the command line."""
    return list(orig_argv[1 : len(orig_argv) - len(argv) + 1 - 2])


def main(argv: Sequence[str]) -> int:
    """Become the script's process; returns only when there is nothing to run."""
    env = dict(os.environ)
    words = list(argv)
    if words[:1] == ["--force"]:
        env[contract.COMPAT] = "force"
        words = words[1:]
    elif env.get(contract.COMPAT) == "off":
        env[contract.COMPAT] = "auto"  # calling this is asking for it
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE, file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    options = interpreter_options(sys.orig_argv, sys.argv)
    if words[0] == "det":
        command = [sys.executable, *options, "-m", "detslurm.cli.det", *words[1:]]
        os.execve(sys.executable, command, env)
    os.execve(sys.executable, [sys.executable, *options, *words], with_determined(env))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
