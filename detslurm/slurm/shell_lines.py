"""The shell of a batch script: the same on Slurm and on the local cluster."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from detslurm.slurm.request import JobRequest

# A batch shell is not a login shell: `module` exists only if the submitting shell exported it.
_FIND_MODULE = """\
if ! type module >/dev/null 2>&1; then
  for file in /etc/profile.d/{z00_lmod,lmod,modules,zz-modules}.sh; do
    if [ -r "$file" ]; then . "$file"; break; fi
  done
fi"""


def prologue(request: JobRequest) -> list[str]:
    """Shell lines before the command: the submitting Python's PATH, modules, the user's setup."""
    lines = [
        # A signal that comes before the command has its handlers must not end the job; what is
        # ignored here stays so across exec until the command decides otherwise.
        "trap '' USR1 USR2 INT",
        f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"',
    ]
    if request.modules:
        lines.append(_FIND_MODULE)
        lines += [f"module load {shlex.quote(name)} || exit 1" for name in request.modules]
    return [*lines, *request.setup]


def command_line(request: JobRequest) -> str:
    """The last lines: the batch shell becomes the command, so that its signals reach it."""
    python, *words = request.command
    first = "exec " + shlex.join(request.command)
    if words[:1] != ["-PS"]:
        return first
    # Installed anew while the job waits, Python and package may be elsewhere in the environment.
    plain = [str(Path(python).parent / "python3"), "-P", "-m", *words[2:]]
    there = f"[ -x {shlex.quote(python)} ] && [ -e {shlex.quote(words[1])} ]"
    return f"if {there}; then {first}; fi\nexec {shlex.join(plain)}"
