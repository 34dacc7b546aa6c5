"""The end of a search as a fact, and ids for trials that it creates beyond those foreseen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from detslurm.store.experiment import ExperimentDir
from detslurm.store.experimentfold import experiment_facts

# Ids are reserved by so many.
BLOCK: Final = 16


def add_trials(experiment: ExperimentDir, after: int) -> bool:
    """Give the experiment another block of trial ids, unless more has happened than fact `after`.

    The order of the facts is what gives a trial its id: whoever loses looks at them again.
    """
    first = experiment.store.reserve_trials(experiment.id, BLOCK)
    return experiment.append_next({"type": "trials", "first_trial": first, "trials": BLOCK}, after)


def end_search(
    experiment: ExperimentDir, outcomes: Sequence[str | None], verdict: str | None
) -> bool:
    """Say how the search closed its trials, in order of creation; False where that is known."""
    facts = experiment_facts(experiment.facts(fresh=True))
    while facts.closed is None and len(facts.trial_ids) < len(outcomes):
        add_trials(experiment, facts.count)
        facts = experiment_facts(experiment.facts(fresh=True))
    if facts.closed is not None:
        return False
    ids = map(str, facts.trial_ids)
    closed = dict(zip(ids, outcomes, strict=False))
    experiment.append(
        {
            "type": "search_ended",
            "created": len(outcomes),
            "closed": closed,
            "verdict": verdict,
        },
        facts.count,
    )
    return True
