"""The folds that turn an experiment's facts and trials into its desired state and a view. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from detslurm.store.errors import Problem
from detslurm.store.states import FINISHED
from detslurm.store.trial_fold import FoldContext, better
from detslurm.store.views import DesiredState, ExperimentView, Job, TrialRow


class ExperimentFacts(msgspec.Struct, kw_only=True):
    """The fold of an experiment's facts, trials aside; `count` is the last fact's number.

    `origin` leads from the index of a replacement (of a trial with invalid hyperparameters) to that
    of the trial whose job runs it.
    `closed` says how a search closed its trials (by id) and is None until the search is over.
    """

    created: dict[str, Any] = msgspec.field(default_factory=dict)
    count: int = 0
    desired: DesiredState = DesiredState()
    jobs: tuple[Job, ...] = ()
    folder: str = ""  # in which its jobs work: other jobs may come to have their ids
    trial_ids: tuple[int, ...] = ()
    lost: dict[int, str] = msgspec.field(default_factory=dict)
    origin: dict[int, int] = msgspec.field(default_factory=dict)
    closed: dict[int, str] | None = None
    verdict: str | None = None
    deleted_checkpoints: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()

    @property
    def searching(self) -> bool:
        """Whether a search decides, as results come in, which trials there will be."""
        return bool(self.created.get("search")) and self.closed is None

    def submitted_after(self, number: int) -> set[int]:
        """Trials that facts past `number` submitted (again)."""
        return set().union(*(self.trials_of(job) for job in self.jobs if job.fact > number))

    def trials_of(self, job: Job) -> set[int]:
        """The trials that a job works for, with what replaces them."""
        share = range(job.first_index, job.first_index + job.count)
        more = {self.trial_ids[new] for new, first in self.origin.items() if first in share}
        return {*self.trial_ids[share.start : share.stop], *more}

    def context(self, trial_id: int, alive: bool | None = None) -> FoldContext:
        """What the fold of one of its trials needs."""
        return FoldContext(
            metric=self.created.get("metric"),
            smaller_is_better=self.created.get("smaller_is_better", True),
            desired=self.desired,
            deleted_checkpoints=self.deleted_checkpoints,
            lost=self.lost.get(trial_id),
            alive=alive,
            closed=(self.closed or {}).get(trial_id),
        )


def experiment_facts(facts: Iterable[Mapping[str, Any]]) -> ExperimentFacts:
    """Fold an experiment's facts, which come in the order of their numbers."""
    state = ExperimentFacts()
    for fact in facts:
        state.count = fact["n"]
        fold = _FOLDS.get(fact.get("type", ""))
        if fold is not None:  # what a newer version wrote is skipped
            fold(state, fact)
    return state


def _created(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    if not state.created:
        state.created = dict(fact)
        _trials(state, fact)


def _trials(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    first, count = fact.get("first_trial", 0), fact.get("trials", 0)
    if "replaces" in fact:
        state.origin[len(state.trial_ids)] = state.origin.get(fact["replaces"], fact["replaces"])
    state.trial_ids += tuple(range(first, first + count))


def _submitted(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    jobs = tuple(_job(job, fact["n"]) for job in fact.get("jobs") or ())
    state.jobs += jobs
    state.folder = (fact.get("request") or {}).get("folder") or state.folder
    # A new submission gives lost trials another chance; a search's workers take any trial.
    if state.created.get("search"):
        state.lost.clear()
    for trial in set().union(*map(state.trials_of, jobs)) if state.lost else ():
        state.lost.pop(trial, None)


def _script(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    state.folder = str(fact.get("folder") or "")


def _job(job: Mapping[str, Any], number: int) -> Job:
    known = {name: job[name] for name in Job.__struct_fields__ if name in job}
    return Job(**{"cluster": "slurm", "job_id": "", **known, "fact": number})


def _intent(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    intent, desired = fact.get("intent"), state.desired
    changed: dict[str, Any] = {}
    if intent in ("pause", "activate"):
        changed["paused"] = intent == "pause"
        if intent == "activate" and state.created.get("search"):
            state.lost.clear()  # its trials go to whatever workers there are from now on
    elif intent in ("archive", "unarchive"):
        changed["archived"] = intent == "archive"
    elif intent in ("cancel", "kill"):
        changed["stopping"] = "kill" if "kill" in (intent, desired.stopping) else "cancel"
    elif intent == "kill_trial":
        changed["killed_trials"] = desired.killed_trials | {fact.get("trial", 0)}
    elif intent == "delete":
        changed["deleted"] = True
    state.desired = msgspec.structs.replace(desired, **changed)


def _set(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    fields = {**state.desired.fields, str(fact.get("field")): fact.get("value")}
    state.desired = msgspec.structs.replace(state.desired, fields=fields)


def _lost(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    for trial in fact.get("trials") or ():
        state.lost[trial] = str(fact.get("reason") or "its job is gone and has no end record")


def _found(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    for trial in list(state.lost) if state.created.get("search") else fact.get("trials") or ():
        state.lost.pop(trial, None)


def _search_ended(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    if state.closed is None:
        closed = fact.get("closed") or {}
        state.closed = {int(trial): str(how) for trial, how in closed.items()}
        state.verdict = fact.get("verdict")
        state.trial_ids = state.trial_ids[: fact.get("created", 0)]


def _checkpoint_deleted(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    state.deleted_checkpoints |= set(fact.get("uuids") or ()) | {str(fact.get("uuid"))}


def _corrupt(state: ExperimentFacts, fact: Mapping[str, Any]) -> None:
    state.problems += (Problem(str(fact.get("path")), 0, str(fact.get("problem"))),)


_FOLDS = {
    "created": _created,
    "trials": _trials,
    "submitted": _submitted,
    "script": _script,
    "intent": _intent,
    "set": _set,
    "lost": _lost,
    "found": _found,
    "search_ended": _search_ended,
    "checkpoint_deleted": _checkpoint_deleted,
    "corrupt": _corrupt,
}


def experiment_view(
    experiment_id: int, facts: ExperimentFacts, trials: Sequence[TrialRow]
) -> ExperimentView:
    """The view of an experiment whose trials come in the order of their ids."""
    created, desired, fields = facts.created, facts.desired, facts.desired.fields
    state = experiment_state(
        desired,
        [trial.state for trial in trials],
        searching=facts.searching,
        verdict=facts.verdict if facts.searching or not _all_refused(trials) else "errored",
        abandoned=bool(facts.lost),
    )
    smaller = created.get("smaller_is_better", True)
    best = _best_trial(trials, smaller)
    done = state in FINISHED
    return ExperimentView(
        id=experiment_id,
        name=_line(fields.get("name", created.get("name"))),
        owner=created.get("owner", created.get("by", "")),
        state=state,
        progress=1.0 if state == "COMPLETED" else _progress(trials, ended=done),
        created=created.get("time"),
        started=min((t.started for t in trials if t.started is not None), default=None),
        ended=max((t.ended for t in trials if t.ended is not None), default=None) if done else None,
        pool=fields.get("resource_pool", created.get("pool")),
        slots=created.get("slots"),
        trial_count=len(trials if facts.searching else facts.trial_ids),
        trial_states=dict(Counter(trial.state for trial in trials)),
        description=_text(fields.get("description", created.get("description"))),
        labels=_labels(fields.get("labels", created.get("labels"))),
        notes=_text(fields.get("notes", created.get("notes"))),
        archived=desired.archived,
        metric=created.get("metric"),
        smaller_is_better=smaller,
        best_trial=best.id if best else None,
        best_value=best.best_validation.value if best and best.best_validation else None,
        cluster=created.get("cluster"),
        facts=facts.count,
        first_trial=created.get("first_trial", 0),
        max_restarts=created.get("max_restarts", 0),
        desired=desired,
        fields=fields,
        jobs=facts.jobs,
        trials=tuple(trials),
        problems=facts.problems,
    )


def _text(value: Any, also: str = "\n\t") -> str:
    """Text as it may be shown, whatever was stored: no terminal obeys it."""
    text = "" if value is None else str(value)
    return "".join(char if char.isprintable() or char in also else "?" for char in text)


def _line(value: Any) -> str:
    return _text(value, also="")


def _labels(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, (list, tuple)) else [value]
    return tuple(label for item in found if (label := _line(item)))


def _all_refused(trials: Sequence[TrialRow]) -> bool:
    """Whether a search found no sample that its code accepts."""
    return len(trials) > 1 and all(trial.invalid for trial in trials)


def experiment_state(
    desired: DesiredState,
    trial_states: Sequence[str],
    *,
    searching: bool = False,
    verdict: str | None = None,
    abandoned: bool = False,
) -> str:
    """The experiment's state: final once every trial is, else what the user wants.

    While a search goes on more trials may come, unless the user stops it or it is `abandoned`: all
    its workers are gone. `verdict` is its own word for how it ended.
    """
    if desired.deleted:
        return "DELETED"
    over = all(state in FINISHED for state in trial_states)
    if searching and over and desired.stopping is not None:
        return "CANCELED"
    if searching and over and abandoned:
        return "ERROR"
    if verdict in _VERDICTS:
        return _VERDICTS[verdict]
    if trial_states and over and not searching:
        return _final_state(desired, set(trial_states))
    if desired.stopping is not None:
        return "STOPPING_KILLED" if desired.stopping == "kill" else "STOPPING_CANCELED"
    return "PAUSED" if desired.paused else "ACTIVE"


_VERDICTS = {"errored": "ERROR", "canceled": "CANCELED"}


def _final_state(desired: DesiredState, states: set[str]) -> str:
    if desired.stopping is not None and "CANCELED" in states:
        return "CANCELED"
    if "COMPLETED" in states:
        return "COMPLETED"
    return "ERROR" if "ERROR" in states else "CANCELED"


def _best_trial(trials: Iterable[TrialRow], smaller: bool) -> TrialRow | None:
    best: TrialRow | None = None
    for trial in trials:
        validation = trial.best_validation
        if validation is None or validation.value is None:
            continue
        standing = best.best_validation.value if best and best.best_validation else None
        if best is None or better(validation.value, standing, smaller):
            best = trial
    return best


def _progress(trials: Sequence[TrialRow], *, ended: bool) -> float:
    """The part that is done; once all has ended, what was killed counts as far as it came."""
    if not trials:
        return 0.0
    whole = {"COMPLETED"} if ended else FINISHED
    return sum(1.0 if t.state in whole else t.progress for t in trials) / len(trials)
