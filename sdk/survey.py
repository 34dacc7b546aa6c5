"""Experiments as they stand: the store's fold and one look at the queue, put together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from detslurm.sdk import unmanaged
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
    fs,
    view_trial,
)
from detslurm.store.experimentfold import experiment_view
from detslurm.store.outcomes import FINISHED, UNKNOWN
from detslurm.store.reading import Memory

if TYPE_CHECKING:
    from detslurm.sdk.searches import SearchView

# Runners look at the wishes every minute, and sooner where they are told to.
UNHEARD_SECONDS = 180.0


@dataclass
class Surveyed:
    """One experiment, its trials, and what is known of their jobs."""

    directory: ExperimentDir
    facts: ExperimentFacts
    trials: dict[int, TrialRow]
    problems: tuple[Problem, ...] = ()
    standings: dict[int, Standing] = field(default_factory=dict)
    remark: str | None = None
    beats: dict[int, unmanaged.Beat] = field(default_factory=dict)
    strange: set[Place] = field(default_factory=set)  # other jobs under the ids of its own
    _read: dict[int, Memory] = field(default_factory=dict)

    def own(self, sight: Sight) -> Sight:
        """What is seen of its own jobs: a cluster that counts anew gives their ids to others."""
        ids = self.workers if self.facts.searching else self.places.values()
        seen = {place: sight.jobs[place] for place in ids if place in sight.jobs}
        folder = self.facts.folder
        self.strange |= {place for place, job in seen.items() if job.is_strange_to(folder)}
        if not self.strange:
            return sight
        jobs = {place: job for place, job in sight.jobs.items() if place not in self.strange}
        return Sight(jobs, sight.silent)

    @property
    def view(self) -> ExperimentView:
        """The experiment as it stands now."""
        self.facts.problems = self.problems
        if not self.facts.searching:
            return experiment_view(self.directory.id, self.facts, list(self.trials.values()))
        search, paused = self._search, self.facts.wishes.paused
        self.trials = {n: search.refine(row, paused=paused) for n, row in self.trials.items()}
        view = experiment_view(self.directory.id, self.facts, list(self.trials.values()))
        return msgspec.structs.replace(view, progress=search.progress)

    @cached_property
    def _search(self) -> SearchView:
        from detslurm.sdk.searches import SearchView  # only here: most experiments have none

        return SearchView(self.directory, self.facts)

    @property
    def search(self) -> SearchView | None:
        """The search that decides, or has decided, which trials there are."""
        return self._search if self.facts.created.get("search") else None

    def look_again(self, trials: Collection[int] | None = None) -> None:
        """Read what is new; of the trials these, else all that are not over."""
        before = self.facts.lost
        self.facts = fold_facts(self.directory)
        found = before.keys() - self.facts.lost.keys()  # what was given up goes on
        ids: Collection[int] = self.facts.trial_ids
        if self.facts.searching:
            self._search.look(self.facts)
            ids = self._search.created_ids
        for trial in ids if trials is None else trials:
            known = self.trials.get(trial)
            if known is None or known.state not in FINISHED or trial in found:
                self.full(trial)

    @property
    def workers(self) -> list[Place]:
        """All jobs of a search, each of which works for any of its trials."""
        return [Place(job.cluster, ref) for job in self.facts.jobs for ref in job.refs]

    @property
    def places(self) -> dict[int, Place]:
        """Trial id -> place of its newest job; in a search the job that works at it now."""
        if self.facts.searching:
            return self._search.places()
        found, origin = places(self.facts.jobs), self.facts.origin
        pairs = ((t, found.get(origin.get(i, i))) for i, t in enumerate(self.facts.trial_ids))
        return {trial: place for trial, place in pairs if place is not None}

    @property
    def unfinished(self) -> list[int]:
        """Trials without a last word."""
        return [trial.id for trial in self.trials.values() if trial.state not in FINISHED]

    def full(self, trial: int) -> TrialView:
        """Everything about one trial, read now."""
        context, memory = self.facts.context(trial), self._read.setdefault(trial, {})
        view = self._back_in_queue(view_trial(self.directory.trial(trial), context, memory))
        if view.run_count or view.state == UNKNOWN or not self.facts.searching:
            self.trials[trial] = view.row()
        if view.state in FINISHED:
            self._read.pop(trial, None)  # nobody looks again: thousands of logs need not be kept
        return view

    def _back_in_queue(self, view: TrialView) -> TrialView:
        """As it is where the job that ran it waits again: the run has died with its node."""
        standing = self.standings.get(view.id)
        if view.state != "RUNNING" or standing is None or not standing.waits:
            return view
        if standing.place is None or view.runs[-1].job.get("ref") != standing.place.ref:
            return view
        state = "PAUSED" if self.facts.wishes.paused else "QUEUED"
        return msgspec.structs.replace(view, state=state)

    def look_at_waiting(self) -> None:
        """Read those anew that the store knows as running, though their jobs wait."""
        for trial, standing in self.standings.items():
            known = self.trials.get(trial)
            if standing.waits and known is not None and known.state == "RUNNING":
                self.full(trial)


def read(directory: ExperimentDir) -> Surveyed:
    """An experiment as the store alone knows it."""
    view = fold_experiment(directory, fold=view_trial)
    trials = {row.id: row for row in view.trials}
    found = Surveyed(directory, fold_facts(directory), trials, view.problems)
    if found.facts.searching:
        found.search  # noqa: B018 (what can't be read of it is found out here, too)
    return found


def look_at(found: Sequence[Surveyed], queues: Queues) -> None:
    """Add to experiments what the queue says of their unfinished trials.

    One query a cluster for all of them, none when all is over.
    """
    for one in found:
        if unmanaged.by_hand(one) and not one.facts.wishes.deleted:
            one.standings = unmanaged.standings(one)
            _bury(one, {t: s for t, s in one.standings.items() if s.alive is False})
    wanted = {id(one): _wanted(one) for one in found}
    every = {place for known in wanted.values() for place in known.values()}
    workers = {place for one in found if _searches(one) for place in one.workers}
    if not every and not workers:
        return
    since = min(one.facts.created.get("time", 0.0) for one in found if _asks(one, wanted))
    sight = queues.look(every, since=since, beside=workers)
    for one in found:
        if _searches(one):
            weigh_search(one, one.own(sight), queues)
        else:
            _weigh(one, wanted[id(one)], one.own(sight))


def _searches(one: Surveyed) -> bool:
    return one.facts.searching and not one.facts.wishes.deleted


def _asks(one: Surveyed, wanted: Mapping[int, Mapping[int, Place]]) -> bool:
    return bool(wanted[id(one)]) or _searches(one)


def _wanted(one: Surveyed) -> dict[int, Place]:
    if one.facts.wishes.deleted:
        return {}
    known = one.places
    return {trial: known[trial] for trial in one.unfinished if trial in known}


def weigh_search(one: Surveyed, sight: Sight, queues: Queues) -> None:
    """Judge the trials at work by their workers, and the search by whether any worker is left."""
    one.standings = {t: judge(p, sight) for t, p in one.places.items() if t in one.unfinished}
    one.look_at_waiting()
    alive = [p for p in one.workers if p in sight.jobs and not sight.jobs[p].final]
    dead = {t: s for t, s in one.standings.items() if _is_dead(one, t, s, sight)}
    if one.facts.wishes.stopping:
        _bury(one, dead)
        return
    one.remark = next(iter(one.facts.lost.values()), None) or _all_wait(one, alive, sight)
    if alive or one.facts.wishes.paused or one.facts.lost:
        return
    if any(place.cluster in sight.silent for place in one.workers):
        return
    _without_workers(one, queues)


def _all_wait(one: Surveyed, alive: Sequence[Place], sight: Sight) -> str | None:
    """Why none of a search's workers runs; the one that stands by for the others comes last."""
    if not all(sight.jobs[place].waiting for place in alive):
        return None
    paused = one.facts.wishes.paused
    return next((judge(place, sight, paused=paused).remark for place in alive), None)


def _without_workers(one: Surveyed, queues: Queues) -> None:
    """Nobody works for the search, and nobody waits to: it ends here unless somebody acts."""
    one.look_again()  # the last worker may have ended the search a moment ago
    search = one.search
    if search is None or not one.facts.searching or search.state.done:
        return
    if search.name == "custom":
        one.remark = "no worker is in the queue: the search waits for the runner of its method"
        return
    one.remark = "no worker is left in the queue; `detslurm e activate` submits new ones"
    since = one.facts.created.get("time")
    sight = one.own(queues.look(one.workers, since=since))
    if all(judge(place, sight).alive is False for place in one.workers):
        reason = "all workers of the search are gone; `detslurm e activate` submits new ones"
        one.facts.lost = dict.fromkeys(search.open_ids, reason)
        for trial in list(one.trials):
            one.full(trial)
        _remember(one.directory, {reason: search.open_ids})


def _weigh(one: Surveyed, known: Mapping[int, Place], sight: Sight) -> None:
    """Judge each unfinished trial; one whose job is dead is read again before it is believed."""
    if unmanaged.by_hand(one):
        return
    paused = one.facts.wishes.paused
    one.standings = {t: judge(known.get(t), sight, paused=paused) for t in one.unfinished}
    one.look_at_waiting()
    _bury(one, {t: s for t, s in one.standings.items() if _is_dead(one, t, s, sight)})


def _is_dead(one: Surveyed, trial: int, standing: Standing, sight: Sight) -> bool:
    """Whether there is evidence that a trial's job is gone for good.

    For what the user has killed it is enough that the queue answers and knows no such job: nothing
    can be ended there, and nobody will ever remember more. But this may be another cluster, or
    another machine, that sees the same store: a runner that lives has the time to read the wish.
    """
    if standing.alive is not None or standing.place is None:
        return standing.alive is False
    where = standing.place.cluster
    if not one.facts.wishes.kills(trial) or where in sight.silent:
        return False
    return _killed_since(one.directory, trial) > UNHEARD_SECONDS


def _killed_since(directory: ExperimentDir, trial: int) -> float:
    """Seconds since the user killed a trial, by the clock of the file system."""
    names = (directory.log.name(fact["n"]) for fact in directory.facts() if _kills(fact, trial))
    first, now = next(names, None), fs.time_there(directory.store.path)
    then = fs.modified(first) if first is not None else None
    return now - then if now is not None and then is not None else 0.0


def _kills(fact: Mapping[str, Any], trial: int) -> bool:
    wish = fact.get("wish") if fact.get("type") == "wish" else None
    return wish == "kill" or (wish == "kill_trial" and fact.get("trial") == trial)


def _bury(one: Surveyed, dead: Mapping[int, Standing]) -> None:
    if not dead:
        return
    # Its last word or a successor may have been written between our reading and the look.
    one.facts = fold_facts(one.directory)
    now = one.places
    lost: dict[str, list[int]] = {}
    for trial, standing in dead.items():
        if now.get(trial) != standing.place:
            one.full(trial)
            continue
        reason = f"{standing.remark}; it said no last word"
        if not (one.facts.wishes.stops(trial) or unmanaged.by_hand(one)):
            reason += f"; `detslurm e activate {one.directory.id}` queues it again"
        one.facts.lost[trial] = reason
        view = one.full(trial)
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
