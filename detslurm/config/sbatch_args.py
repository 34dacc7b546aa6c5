"""The user's options of sbatch, and which are not for users: those that detslurm itself must set.

An entry of `slurm.sbatch_args` becomes one `#SBATCH` line, and such a line may hold several
options in every form that getopt takes: `--nodes=2`, `--nodes 2`, `--node=2` (abbreviated),
`-N2`, `-N 2`, `-sN2` (behind a flag). All of them are found here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import zip_longest

_SLOTS = "set resources.slots_per_trial and slurm.slots_per_node"
_POOL = "set resources.resource_pool"
_FILES = "detslurm keeps the logs itself: see `detslurm experiment logs`"
_REQUEUE = "set slurm.on_preempt"
_OURS = "detslurm sets it itself"

RESERVED = {
    "ntasks-per-node": _SLOTS,
    "tasks-per-node": _SLOTS,
    "gpus": _SLOTS,
    "gpus-per-node": _SLOTS,
    "gpus-per-task": _SLOTS,
    "gpus-per-socket": _SLOTS,
    "nodes": _SLOTS,
    "ntasks": _SLOTS,
    "chdir": "trials run in the frozen copy of the context directory",
    "workdir": "trials run in the frozen copy of the context directory",
    "error": _FILES,
    "output": _FILES,
    "open-mode": _FILES,
    "partition": _POOL,
    "requeue": _REQUEUE,
    "no-requeue": _REQUEUE,
    "array": _OURS,
    "signal": "set slurm.signal_lead",
    "wrap": _OURS,
    "parsable": _OURS,
    "quiet": _OURS,
    "test-only": "use `detslurm submit --dry-run`",
    "wait": "use `detslurm submit --follow`",
    "help": _OURS,
    "usage": _OURS,
    "version": _OURS,
    "clusters": _OURS,
}
_SHORT = {
    "G": "gpus",
    "N": "nodes",
    "n": "ntasks",
    "D": "chdir",
    "e": "error",
    "o": "output",
    "p": "partition",
    "a": "array",
    "Q": "quiet",
    "W": "wait",
    "h": "help",
    "V": "version",
    "M": "clusters",
}
_FLAGS = "HhIkOQsvVW"


def refuse(entry: str) -> str | None:
    """Why `entry` can't be one of `sbatch_args`; None if it can."""
    if not entry.isprintable():
        return "must be one printable line"
    try:
        words = shlex.split(entry)
    except ValueError as error:
        return f"can't be split into words: {error}"
    if not words or not words[0].startswith("-"):
        return "must begin with an option, as in --constraint=a100"
    return next(filter(None, map(_refuse_word, words, [*words[1:], ""])), None)


def _refuse_word(word: str, following: str) -> str | None:
    if word.startswith("--"):
        name, _, value = word[2:].partition("=")
        return _refuse_long(name, value or following)
    if word.startswith("-") and len(word) > 1:
        return _refuse_short(word[1:])
    return None


def _refuse_long(name: str, value: str) -> str | None:
    if len(name) >= 3 and "gres".startswith(name) and "gpu" in value.lower():
        return f"slurm option --gres may not be used to configure GPU resources: {_SLOTS}"
    if name in RESERVED:
        return _message(f"--{name}", name)
    # getopt takes unambiguous beginnings of a name: --outp is --output.
    full = next((r for r in RESERVED if len(name) >= 3 and r.startswith(name)), None)
    return _message(f"--{name} (--{full})", full) if full else None


def _refuse_short(cluster: str) -> str | None:
    for letter in cluster:
        if letter in _SHORT:
            return _message(f"-{letter}", _SHORT[letter])
        if letter not in _FLAGS:
            return None
    return None


def _message(option: str, name: str) -> str:
    return f"slurm option {option} is not configurable: {RESERVED[name]}"


def last_given(entries: Iterable[str], name: str, letter: str | None = None) -> str | None:
    """The value that counts of an option, `--name` or `-letter`; None where no entry has it."""
    words = [word for entry in entries for word in shlex.split(entry)]
    found = None
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word.startswith("--"):
            key, given, value = word[2:].partition("=")
            if key and name.startswith(key):
                found = value if given else following
        elif letter and word.startswith("-"):
            short = word[1:].lstrip(_FLAGS)
            if short.startswith(letter):
                found = short[1:] or following
    return found
