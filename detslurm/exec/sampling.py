"""Samples by Optuna, from a process of their own: the runner itself never imports it.

`python -m detslurm.exec.sampling` reads one question as JSON from stdin and answers on stdout.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from detslurm.searcher import Search, State
from detslurm.searcher.optuna.history import TrialHistory


class SamplingError(Exception):
    """There is no sample; the text has the reason."""


class Question(msgspec.Struct):
    """What the process is asked: samples for `wanted`, after what is known."""

    searcher: dict[str, Any]
    space: dict[str, Any]
    seed: int
    history: TrialHistory
    wanted: list[int]


class Answer(msgspec.Struct):
    """The events to commit, or what is wrong."""

    events: list[dict[str, Any]] = []
    error: str | None = None


class SearchLog(Protocol):
    """The log of a search, as far as it is needed here."""

    state: State

    def commit(self, events: Sequence[dict[str, Any]]) -> State: ...


def sample(log: SearchLog, search: Search, index: int) -> dict[str, Any]:
    """The hyperparameters of an assigned trial: what the log has, else sampled and committed.

    All trials that lack a sample get theirs in one go. The loser of a race takes what is there.
    """
    while index in (wanted := search.unsampled(log.state)):
        log.commit(_sample(search, log.state, wanted))
    return search.plan(log.state, index).hparams


def _sample(search: Search, state: State, wanted: list[int]) -> list[dict[str, Any]]:
    question = Question(
        searcher=dict(search.searcher),
        space=dict(search.space),
        seed=search.seed,
        history=state.history or TrialHistory(),
        wanted=wanted,
    )
    # -P: a random.py of the user's own is none of its business.
    argv = [sys.executable, "-P", "-m", "detslurm.exec.sampling"]
    done = subprocess.run(
        argv, input=msgspec.json.encode(question), stdout=subprocess.PIPE, check=False
    )
    try:
        answer = msgspec.json.decode(done.stdout, type=Answer)
    except msgspec.DecodeError:
        raise SamplingError(f"the sampler ended with status {done.returncode}") from None
    if answer.error is not None:
        raise SamplingError(answer.error)
    return answer.events


def answer(question: Question) -> Answer:
    """Ask Optuna."""
    from detslurm.searcher.optuna.bridge import Bridge, BridgeError

    try:
        bridge = Bridge(question.searcher, question.space, question.seed)
        return Answer(events=bridge.suggest(question.history, question.wanted))
    except (BridgeError, ImportError) as error:
        return Answer(error=str(error))


def main() -> int:
    """Answer the question on stdin."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
