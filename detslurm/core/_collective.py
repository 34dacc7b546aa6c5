"""Ranks that decide together: each does its part, the chief decides, all learn the outcome.

A rank that fails reports it instead of staying away, so that no peer waits for it in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from detslurm import errors
from detslurm.core._distributed import DistributedContext
from detslurm.errors import InvalidHP

Part = TypeVar("Part")
Decision = TypeVar("Decision")

# Exceptions that cross to another process by type; others arrive there as RuntimeError.
_KNOWN = (
    RuntimeError,
    ValueError,
    TypeError,
    OSError,
    FileNotFoundError,
    errors.CheckpointNotFound,
    InvalidHP,
)


class RankFailure(NamedTuple):
    """An exception on its way to other processes."""

    kind: type[BaseException]
    text: str

    @classmethod
    def of(cls, error: BaseException) -> RankFailure:
        return cls(type(error) if type(error) in _KNOWN else RuntimeError, describe(error))


def describe(error: BaseException) -> str:
    """The first line of an exception's message, with its type where that is more specific."""
    first = (str(error).splitlines() or [""])[0].rstrip(":")
    return first if type(error) in _KNOWN and first else f"{type(error).__name__}: {first}"


def run_collectively(
    dist: DistributedContext,
    part: Callable[[], Part],
    decide: Callable[[list[Part]], Decision],
    *,
    local: bool = False,
) -> Decision:
    """Run `part` on every rank, then `decide` on the (local) chief with all parts by rank.

    Everybody gets the decision, or an exception if any of that failed anywhere: the one who
    failed its own, the others one of the same type with its first line.
    """
    gather: Callable[[Any], list[Any] | None] = dist.gather_local if local else dist.gather
    broadcast: Callable[[Any], Any] = dist.broadcast_local if local else dist.broadcast
    own, answer = _attempt(part)
    answers = gather(answer)
    if answers is not None:
        verdict = next((a for a in _named(answers) if isinstance(a, RankFailure)), None)
        if verdict is None:
            error, verdict = _attempt(lambda: decide(answers))
            own = own or error
    else:
        verdict = None
    outcome = broadcast(verdict)
    if own is not None:
        raise own
    if isinstance(outcome, RankFailure):
        raise outcome.kind(outcome.text)
    return outcome  # type: ignore[no-any-return]


def _attempt(action: Callable[[], Any]) -> tuple[BaseException | None, Any]:
    try:
        return None, action()
    except Exception as error:
        return error, RankFailure.of(error)


def _named(answers: list[Any]) -> list[Any]:
    if len(answers) == 1:
        return answers
    return [
        RankFailure(a.kind, f"{a.text} (on rank {rank})") if isinstance(a, RankFailure) else a
        for rank, a in enumerate(answers)
    ]
