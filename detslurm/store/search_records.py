"""A search's records in its experiment: trial ids, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from detslurm.store.experiment import ExperimentDir
from detslurm.store.experiment_fold import ExperimentFacts
from detslurm.store.reading import latest_of
from detslurm.store.records import SearchEnded, Trials

# How many trial ids are reserved at a time.
BLOCK: Final = 16


def add_trials(experiment: ExperimentDir, facts: ExperimentFacts) -> bool:
    """Give the experiment another block of trial ids, unless more has happened than in `facts`.

    The order of the facts gives a trial its id: a process that loses looks at them again. Raises
    `RecordMissing` where a fact was lost.
    """
    facts.refuse_gap(f"experiment {experiment.id} gets no trial ids")
    first = experiment.store.reserve_trials(experiment.id, BLOCK)
    return experiment.append_next(Trials(first_trial=first, trials=BLOCK), facts.count)


def with_checkpoints(
    experiment: ExperimentDir, trial_ids: Sequence[int], left: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """`run_ended` events of workers that died, with the checkpoints that their trials have."""
    return [{**event, **_checkpoint(experiment, trial_ids, event["trial"])} for event in left]


def _checkpoint(experiment: ExperimentDir, trial_ids: Sequence[int], index: int) -> dict[str, Any]:
    if index >= len(trial_ids):
        return {}
    latest = latest_of(experiment.trial(trial_ids[index]))
    return {} if latest is None else {"checkpoint": latest.uuid}


def end_search(
    experiment: ExperimentDir,
    outcomes: Sequence[str | None],
    verdict: str | None,
    reason: str | None = None,
) -> bool:
    """Record how the search closed its trials, in order of creation; False where that is done."""
    facts = ExperimentFacts().fold(experiment.facts())
    while facts.closed is None and len(facts.trial_ids) < len(outcomes):
        add_trials(experiment, facts)
        facts.fold(experiment.facts(after=facts.count))
    if facts.closed is not None:
        return False
    closed = dict(zip(facts.trial_ids, outcomes, strict=False))
    ended = SearchEnded(created=len(outcomes), closed=closed, verdict=verdict, reason=reason)
    experiment.append(ended, facts.count)
    return True
