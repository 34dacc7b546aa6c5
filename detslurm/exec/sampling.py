"""Samples by Optuna, from a process of their own: the runner itself never imports it.

`python -m detslurm.exec.sampling` reads one question as JSON from stdin and answers on stdout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import msgspec

from detslurm._base import pythonpath
from detslurm._base.process import exit_status
from detslurm.exec.outcome import describe_exit
from detslurm.exec.text_log import print_message
from detslurm.searcher import Search, State
from detslurm.searcher.optuna.history import TrialHistory
from detslurm.store import EventLog, StoreError
from detslurm.store.retry import LONG, with_retries


class SamplingError(Exception):
    """There is no sample; the text has the reason."""


class SamplerLost(StoreError):
    """No sampler came to an answer here, which is no fault of the trial."""


class Question(msgspec.Struct):
    """The question to the process: samples for `wanted`, after the known results."""

    searcher: dict[str, Any]
    space: dict[str, Any]
    seed: int
    history: TrialHistory
    wanted: list[int]


class Answer(msgspec.Struct):
    """The events to commit, or the error; `missing` is a package, which may be back soon.

    The `warnings` are Optuna's, about arguments that its next version refuses.
    """

    events: list[dict[str, Any]] = []
    warnings: list[str] = []
    error: str | None = None
    missing: bool = False


def sample(log: EventLog[State], search: Search, index: int) -> dict[str, Any]:
    """The hyperparameters of an assigned trial: what the log has, else sampled and committed.

    All trials that lack a sample get theirs in one go. The loser of a race takes the winner's.

    Raises:
        SamplingError: If Optuna can't do what the configuration asks.
        SamplerLost: If samplers have come to no answer for minutes.
    """
    while index in (wanted := search.unsampled(log.state)):
        ask = partial(_sample, search, log.state, wanted)
        log.commit(with_retries(ask, lambda err: print_message(f"{err}: trying again"), LONG))
    return search.plan(log.state, index).hparams


def _sample(search: Search, state: State, wanted: list[int]) -> list[dict[str, Any]]:
    # Only here: other searches start without it.
    from detslurm._base.child_processes import die_with_parent_alone

    question = Question(
        searcher=dict(search.searcher),
        space=dict(search.space),
        seed=search.seed,
        history=search.history(state),
        wanted=wanted,
    )
    # -P: a random.py of the user's own is none of its business.
    argv = [sys.executable, "-P", "-m", "detslurm.exec.sampling"]
    data, here = msgspec.json.encode(question), os.uname().nodename
    try:
        done = subprocess.run(
            argv, input=data, stdout=subprocess.PIPE, check=False, preexec_fn=die_with_parent_alone
        )
        answer = msgspec.json.decode(done.stdout, type=Answer)
    except OSError as err:
        raise SamplerLost(f"no sampler can be started on {here}: {err}") from err
    except msgspec.DecodeError:
        how = describe_exit(exit_status(done.returncode))
        raise SamplerLost(f"the sampler {how} on {here}") from None
    if answer.error is None:
        _report_other_version(state.optuna, answer.events[0].get("optuna"))
        return answer.events
    raise SamplerLost(answer.error) if answer.missing else SamplingError(answer.error)


def _report_other_version(before: str | None, now: str | None) -> None:
    """Warn of a changed Optuna: the search goes on, because its log has all samples so far."""
    if None not in (before, now) and now != before:
        print_message(
            f"Optuna {now} draws samples now; it was Optuna {before} before. The search goes on,"
            " but another run of it may not repeat its samples."
            f" To avoid this, install optuna=={before} again."
        )


def answer(question: Question) -> Answer:
    """Ask Optuna."""
    from detslurm.searcher.optuna.bridge import Bridge, BridgeError

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FutureWarning)
            bridge = Bridge(question.searcher, question.space, question.seed)
            events = bridge.suggest(question.history, question.wanted)
        deprecated = [str(c.message) for c in caught if issubclass(c.category, FutureWarning)]
        return Answer(events=events, warnings=list(dict.fromkeys(deprecated)))
    except (BridgeError, ImportError) as error:
        missing = isinstance(error.__cause__ or error, ImportError)
        return Answer(error=str(error), missing=missing)
    except (OSError, MemoryError):
        raise  # of this node, not of the question
    except Exception as error:
        return Answer(error=f"Optuna failed: {type(error).__name__}: {error}")


def main() -> int:
    """Answer the question on stdin."""
    pythonpath.append_what_is_aside()
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    sys.stdout.buffer.write(msgspec.json.encode(answer(question)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
