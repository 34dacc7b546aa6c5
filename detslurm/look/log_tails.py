"""The last lines of trials' logs, without the configuration's secrets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from detslurm.look.problems import Problems
from detslurm.sdk.hiding import hidden, secrets_in

if TYPE_CHECKING:
    from detslurm.sdk import Trial
    from detslurm.store import ExperimentDir

ALL: Final = 500_000
"""How many bytes the log tails of an experiment have together."""

_LONGEST = 2000


def log_tails(
    directory: ExperimentDir, trials: Sequence[Trial], lines: int, problems: Problems
) -> dict[int, list[str]]:
    """The last lines of each of these trials' logs, of which the newest are kept if all are much.

    Nothing of a log is shown to readers who can't know its secrets.
    """
    if not trials or lines < 1:
        return {}
    secrets = secrets_in(directory)
    if secrets is None:
        problems.append("logs are left out: only their owner knows their secrets")
        return {}
    found: dict[int, list[str]] = {}
    for trial in trials:
        what = f"the log of trial {trial.id}"
        read = partial(_tail, trial, lines, secrets, ALL // len(trials))
        found[trial.id] = problems.read(what, read) or []
    return found


def _tail(trial: Trial, lines: int, secrets: Sequence[bytes], most: int) -> list[str]:
    return _newest([_clean(line, secrets) for line in trial.logs(tail=lines)], most)


def _clean(line: str, secrets: Sequence[bytes]) -> str:
    data = hidden(line.encode("utf-8", "backslashreplace"), secrets)
    text = data.decode("utf-8", "replace")
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def _newest(lines: Sequence[str], most: int) -> list[str]:
    """The last of the lines, at most `most` bytes; of the very last at least its beginning."""
    kept: list[str] = []
    left = most
    for line in reversed(lines):
        left -= len(line.encode()) + 4
        if left < 0:
            break
        kept.append(line)
    return kept[::-1] or [line[:most] for line in lines[-1:]]
