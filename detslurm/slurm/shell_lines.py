"""The shell of a batch script: the same on Slurm and on the local cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from detslurm._base import central, contract, pythonpath
from detslurm.slurm.allocation import SLURM_OUTPUT_FD
from detslurm.slurm.request import JobRequest

# A batch shell is not a login shell: `module` exists only if the submitting shell exported it.
_FIND_MODULE = """\
if ! type module >/dev/null 2>&1; then
  for file in /etc/profile.d/{z00_lmod,lmod,modules,zz-modules}.sh; do
    if [ -r "$file" ]; then . "$file"; break; fi
  done
fi"""


# A line fails as a command fails under `set -e`: conditions, `|| true` and the commands inside of
# sourced files and functions don't count. The EXIT trap reports what ends the shell itself: a
# variable that is unset under `set -u`, a syntax error, an `exit`. A SIGTERM is not a failure.
# Only the number of a line is printed, because a line may hold a secret.
_WATCH = """\
_detslurm_options=$(set +o)
_detslurm_failed() {
  trap - ERR EXIT TERM
  if [ "$1" = 143 ]; then exit 143; fi
  local job=${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID-}}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
  if [ -n "${DETSLURM_LOCAL_JOB_ID-}" ]; then
    job=$DETSLURM_LOCAL_JOB_ID${DETSLURM_LOCAL_TASK_ID:+_$DETSLURM_LOCAL_TASK_ID}
  fi
  echo "detslurm: job $job: $2 failed on ${HOSTNAME-} with exit status $1"
  exit 1
}
_detslurm_line() {
  if [ "$3" = 1 ]; then _detslurm_failed "$1" "slurm.setup, line $2,"; fi
}"""
_WATCH_SETUP = """\
trap 'trap - ERR EXIT TERM; kill -TERM $$' TERM
trap '_detslurm_failed $? slurm.setup' EXIT
trap '_detslurm_line $? $((LINENO - _detslurm_first)) ${#BASH_SOURCE[@]}' ERR
_detslurm_first=$LINENO"""
_END_WATCH = """\
trap - ERR EXIT TERM
eval "$_detslurm_options\""""

# Module trees have other versions of packages that a runner and its agents need, too.
_ASIDE = f"""\
if [ -n "${{PYTHONPATH-}}" ]; then export {contract.PYTHONPATH}="$PYTHONPATH"; fi
unset PYTHONPATH
"""

# Where Slurm can't open a job's output, it fails the job at once with 0:53. So that output is on
# the node, and stays open for what slurmstepd writes; the script itself waits for the store. A file
# server takes minutes to fail over.
_OPEN_OUTPUT = """\
exec {slurm}>&2
_detslurm_job=${{DETSLURM_LOCAL_JOB_ID:-${{SLURM_ARRAY_JOB_ID:-${{SLURM_JOB_ID-}}}}}}
_detslurm_tries=120
until exec >>{folder}/slurm-"$_detslurm_job".out 2>&1 && cd {folder}; do
  if [ $((_detslurm_tries -= 1)) = 0 ]; then exit 1; fi
  sleep 5
done"""

_OTHER_VERSION = """\
if [ ! -x {place}/bin/python3 ]; then
  _detslurm_other=$(ls -d {versions}/*/{library}/detslurm 2>/dev/null | sort -V | tail -n 1)
  if [ -z "$_detslurm_other" ]; then
    echo "detslurm: {place} is not there, and {versions} has no other version:"\
      "load a detslurm, then run detslurm experiment activate" >&2
    exit 1
  fi
  _detslurm_other=${{_detslurm_other%/{library}/detslurm}}/bin/python3
  echo "detslurm: {place} is not there: $_detslurm_other goes on" >&2
  exec "$_detslurm_other" {command}
fi
"""

_FAILED = re.compile(r"detslurm: job (\S+): (slurm\.(?:setup|modules).* failed on .*)")


def prologue(request: JobRequest) -> list[str]:
    """Shell lines before the command: the output, the PATH of the code's Python, modules, the
    user's setup.

    A module or a line of the setup that fails ends the job; `failed_setups` finds that in its
    output. Options that the setup sets, such as `set -eu`, end with it.
    """
    lines = [
        # A signal that comes before the command has its handlers must not end the job; signals
        # ignored here stay so across exec until the command decides otherwise.
        "trap '' USR1 USR2 INT",
        _OPEN_OUTPUT.format(slurm=SLURM_OUTPUT_FD, folder=shlex.quote(str(request.folder))),
    ]
    if (first := central.first_in_path()) is not None:
        lines.append(f'export PATH={shlex.quote(first)}:"$PATH"')
    if request.modules or request.setup:
        lines.append(_WATCH)
    if request.modules:
        lines.append(_FIND_MODULE)
        lines += map(_load, request.modules)
    if request.setup:
        lines += [_WATCH_SETUP, *request.setup, _END_WATCH]
    return lines


def _load(module: str) -> str:
    failed = shlex.quote(f"slurm.modules: module load {module}")
    return f"module load {shlex.quote(module)} || _detslurm_failed $? {failed}"


def failed_setups(output: Iterable[str]) -> dict[str, str]:
    """Job, or element of an array -> how its setup failed, from the lines that jobs printed."""
    return {found[1]: found[2] for found in map(_FAILED.fullmatch, output) if found}


def command_line(request: JobRequest) -> str:
    """The last lines: the batch shell becomes the command, so that its signals reach it."""
    python, *words = request.command
    first = "exec " + shlex.join(request.command)
    if words[:1] != ["-PS"]:
        return first
    aside = "" if pythonpath.is_needed() else _ASIDE
    # Installed anew while the job waits, Python and package may be elsewhere in the environment.
    plain = [str(Path(python).parent / "python3"), "-P", "-m", *words[2:]]
    there = f"[ -x {shlex.quote(python)} ] && [ -e {shlex.quote(words[1])} ]"
    other = "" if central.library() is None else _other_version(python, plain[1:])
    return f"{aside}if {there}; then {first}; fi\n{other}exec {shlex.join(plain)}"


def _other_version(python: str, words: Sequence[str]) -> str:
    """Lines for the case that an administrator has removed the version: the newest whole one goes
    on. The library is there only once the packages are."""
    place = Path(python).parents[1]
    return _OTHER_VERSION.format(
        place=shlex.quote(str(place)),
        versions=shlex.quote(str(place.parent)),
        library=contract.CENTRAL_LIBRARY,
        command=shlex.join(words),
    )
