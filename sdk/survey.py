"""Experiments as they stand: the store's fold and one look at the queue, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from detslurm.sdk.queues import Queues
from detslurm.sdk.standing import Place, Sight, Standing, judge, places

from detslurm.store import (
    ExperimentDir,
    ExperimentFacts,
    ExperimentView,
    StoreError,
    TrialView,
    fold_facts,
    fold_trial,
)
from detslurm.store.experimentfold import experiment_view
from detslurm.store.outcomes import FINISHED


@dataclass
class Surveyed:
    """One experiment with its trials' full views and what is known of their jobs."""

    directory: ExperimentDir
    facts: ExperimentFacts
    trials: dict[int, TrialView]
    standings: dict[int, Standing] = field(default_factory=dict)

    @property
    def view(self) -> ExperimentView:
        """The experiment as it stands now."""
        rows = [trial.row() for trial in self.trials.values()]
        facts = msgspec.structs.replace(
            self.facts,
            problems=(
                *self.facts.problems,
                *(problem for trial in self.trials.values() for problem in trial.problems),
            ),
        )
        return experiment_view(self.directory.id, facts, rows)

    @property
    def places(self) -> dict[int, Place]:
        """Trial id -> place of its newest job."""
        found = places(self.facts.jobs)
        ids = enumerate(self.facts.trial_ids)
        return {trial: found[index] for index, trial in ids if index in found}

    @property
    def unfinished(self) -> list[int]:
        """Trials without a last word."""
        return [t.id for t in self.trials.values() if t.state not in FINISHED]


def read(directory: ExperimentDir) -> Surveyed:
    """An experiment as the store alone knows it."""
    facts = fold_facts(directory)
    trials = {
        trial: fold_trial(directory.trial(trial), facts.context(trial)) for trial in facts.trial_ids
    }
    return Surveyed(directory, facts, trials)


def survey(directories: Iterable[ExperimentDir], queues: Queues) -> list[Surveyed]:
    """Experiments as they stand; one query a cluster for all of them, none when all is over."""
    found = [read(directory) for directory in directories]
    look_at(found, queues)
    return found


def look_at(found: Sequence[Surveyed], queues: Queues) -> Sight | None:
    """Add to experiments what the queue says of their unfinished trials."""
    wanted = {place for one in found for place in _wanted(one)}
    if not wanted:
        return None
    since = min(one.facts.created.get("time", 0.0) for one in found if one.unfinished)
    sight = queues.look(wanted, since=since)
    for one in found:
        _weigh(one, sight)
    return sight


def _wanted(one: Surveyed) -> list[Place]:
    if one.facts.wishes.deleted:
        return []
    known = one.places
    return [known[trial] for trial in one.unfinished if trial in known]


def _weigh(one: Surveyed, sight: Sight) -> None:
    """Judge each unfinished trial; one whose job is dead is read again before it is believed."""
    paused, known = one.facts.wishes.paused, one.places
    for trial in one.unfinished:
        one.standings[trial] = judge(known.get(trial), sight, paused=paused)
    dead = {t: s for t, s in one.standings.items() if s.alive is False}
    if dead:
        _bury(one, dead)


def _bury(one: Surveyed, dead: dict[int, Standing]) -> None:
    # Its last word or a successor may have been written between our reading and the look.
    one.facts = fold_facts(one.directory, fresh=True)
    now = one.places
    lost: dict[str, list[int]] = {}
    for trial, standing in dead.items():
        context = one.facts.context(trial)
        if now.get(trial) == standing.place:
            reason = f"{standing.remark}; it said no last word"
            context = msgspec.structs.replace(context, lost=reason)
        view = fold_trial(one.directory.trial(trial), context, fresh=True)
        one.trials[trial] = view
        if context.lost and view.state == "ERROR" and view.end_reason == context.lost:
            lost.setdefault(context.lost, []).append(trial)
    _remember(one.directory, lost)


def _remember(directory: ExperimentDir, lost: dict[str, list[int]]) -> None:
    # Slurm forgets within minutes: evidence of a death is kept as a fact.
    for reason, trials in lost.items():
        try:
            directory.append({"type": "lost", "trials": trials, "reason": reason})
        except StoreError:
            return  # a reader without the right to write, or a full disk: it only shows it
