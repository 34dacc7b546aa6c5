"""Experiments as they stand: the store's fold and one look at the queue, put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from detslurm.sdk.queues import Queues
from detslurm.sdk.standing import Place, Sight, Standing, judge, places

from detslurm.store import (
    ExperimentDir,
    ExperimentFacts,
    ExperimentView,
    Problem,
    StoreError,
    TrialRow,
    TrialView,
    fold_experiment,
    fold_facts,
    fold_trial,
)
from detslurm.store.experimentfold import experiment_view
from detslurm.store.outcomes import FINISHED


@dataclass
class Surveyed:
    """One experiment, its trials, and what is known of their jobs."""

    directory: ExperimentDir
    facts: ExperimentFacts
    trials: dict[int, TrialRow]
    problems: tuple[Problem, ...] = ()
    standings: dict[int, Standing] = field(default_factory=dict)

    @property
    def view(self) -> ExperimentView:
        """The experiment as it stands now."""
        self.facts.problems = self.problems
        return experiment_view(self.directory.id, self.facts, list(self.trials.values()))

    @property
    def places(self) -> dict[int, Place]:
        """Trial id -> place of its newest job."""
        found = places(self.facts.jobs)
        ids = enumerate(self.facts.trial_ids)
        return {trial: found[index] for index, trial in ids if index in found}

    @property
    def unfinished(self) -> list[int]:
        """Trials without a last word."""
        return [trial.id for trial in self.trials.values() if trial.state not in FINISHED]

    def full(self, trial: int, *, fresh: bool = False) -> TrialView:
        """Everything about one trial, read now."""
        context = self.facts.context(trial)
        view = fold_trial(self.directory.trial(trial), context, fresh=fresh)
        self.trials[trial] = view.row()
        return view


def read(directory: ExperimentDir) -> Surveyed:
    """An experiment as the store alone knows it."""
    view = fold_experiment(directory)
    trials = {row.id: row for row in view.trials}
    return Surveyed(directory, fold_facts(directory), trials, view.problems)


def survey(directories: Iterable[ExperimentDir], queues: Queues) -> list[Surveyed]:
    """Experiments as they stand; one query a cluster for all of them, none when all is over."""
    found = [read(directory) for directory in directories]
    look_at(found, queues)
    return found


def look_at(found: Sequence[Surveyed], queues: Queues) -> None:
    """Add to experiments what the queue says of their unfinished trials."""
    wanted = {id(one): _wanted(one) for one in found}
    every = {place for known in wanted.values() for place in known.values()}
    if not every:
        return
    since = min(one.facts.created.get("time", 0.0) for one in found if wanted[id(one)])
    sight = queues.look(every, since=since)
    for one in found:
        _weigh(one, wanted[id(one)], sight)


def _wanted(one: Surveyed) -> dict[int, Place]:
    if one.facts.wishes.deleted:
        return {}
    known = one.places
    return {trial: known[trial] for trial in one.unfinished if trial in known}


def _weigh(one: Surveyed, known: Mapping[int, Place], sight: Sight) -> None:
    """Judge each unfinished trial; one whose job is dead is read again before it is believed."""
    paused = one.facts.wishes.paused
    one.standings = {t: judge(known.get(t), sight, paused=paused) for t in one.unfinished}
    dead = {t: s for t, s in one.standings.items() if s.alive is False}
    if dead:
        _bury(one, dead)


def _bury(one: Surveyed, dead: Mapping[int, Standing]) -> None:
    # Its last word or a successor may have been written between our reading and the look.
    one.facts = fold_facts(one.directory, fresh=True)
    now = one.places
    lost: dict[str, list[int]] = {}
    for trial, standing in dead.items():
        if now.get(trial) != standing.place:
            one.full(trial, fresh=True)
            continue
        reason = f"{standing.remark}; it said no last word"
        one.facts.lost[trial] = reason
        view = one.full(trial, fresh=True)
        if view.state not in FINISHED or view.final:
            del one.facts.lost[trial]  # paused, or it said its last word meanwhile
        else:
            lost.setdefault(reason, []).append(trial)
    _remember(one.directory, lost)


def _remember(directory: ExperimentDir, lost: Mapping[str, Sequence[int]]) -> None:
    # Slurm forgets within minutes: evidence of a death is kept as a fact.
    for reason, trials in lost.items():
        try:
            directory.append({"type": "lost", "trials": trials, "reason": reason})
        except StoreError:
            return  # a reader without the right to write, or a full disk: it only shows it
