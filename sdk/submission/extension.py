"""Searches that go on: with more trials, a longer length or more rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detslurm._base.quantities import counted
from detslurm._base.states import ERROR, INVALID_HP, OUT_OF_OPS
from detslurm.config import ExperimentConfig
from detslurm.config.secret_values import masked_values
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.submission.begins import begin_of
from detslurm.sdk.submission.derivation import Begin, Past
from detslurm.searcher import Search, SearchTrial, State
from detslurm.searcher.method import length_of
from detslurm.storage import Storages
from detslurm.store import Events, logged_events, refuse_newer
from detslurm.store.search_records import with_checkpoints

if TYPE_CHECKING:
    from detslurm.sdk.experiments.snapshot import ExperimentSnapshot

GROWS = {"pbt": "num_rounds", "grid": "max_length", "single": "max_length"}
"""The key by which a search grows, where it is not `max_trials`."""

_LARGER = ("max_trials", "num_rounds", "max_time")
_FREE = (*_LARGER, "max_length", "max_concurrent_trials", "stop")
_KEEPS = """\
{0}: a search that goes on keeps its own. For another search submit `detslurm experiment fork {1}`
with this change; --config searcher.prior_experiments=[{1}] gives it the results of this one"""
_SMALLER = "searcher.{0}: {1} is less than the {2} of experiment {3}: a search goes on with more"
_CUSTOM = """\
experiment {0}: its search method runs in a script of yours, and decides whether its search goes on:
call LocalSearchRunner.continue_() there, or continue one trial with --trial"""
_NOTHING = """\
nothing is left to do for the search of experiment {0}: set a larger searcher.{1}, or let one
trial go on with --trial"""
_ENDED_BY_RULE = """\
searcher.stop: the results of experiment {0} meet this rule already: loosen it, or search on
without a rule (--config searcher.stop=null)"""
# How a run ended that does not go on, although its worker had no time to tell the search.
_ENDED = (ERROR, INVALID_HP)


@dataclass(frozen=True)
class Extension:
    """The first event of a search that goes on, the state after it, and trials that had begun."""

    event: Mapping[str, Any]
    state: State
    begins: Mapping[int, Begin]
    notes: tuple[str, ...]


def extension_of(
    one: ExperimentSnapshot,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    method_runner: str | None,
) -> Extension:
    """How the search of `one` goes on, by the configurations of both experiments. Raises
    `SubmitError`, or `RecordMissing` where facts or events were lost, or `NewerFormat`."""
    refuse_newer(one.directory.path, one.facts.format)
    if before["searcher"]["name"] == "custom" and method_runner is None:
        raise SubmitError(_CUSTOM.format(one.view.id))
    before = ExperimentConfig.from_dict(dict(before)).to_dict()  # an older version knew fewer keys
    if problems := [*_refused(one.view.id, before, after)]:
        raise SubmitError("\n".join(problems))
    logged = logged_events(one.directory.search, Search(before))
    events = _until_the_rule(before, logged)
    search = Search({**before, "searcher": {**before["searcher"], "stop": None}})
    ended = search.initial()
    search.apply(ended, events)
    if ended.created > one.facts.created.trials:
        one.facts.refuse_gap("which of its trials is which is unknown")
    events += with_checkpoints(one.directory, one.facts.trial_ids, _given_back(one, ended))
    event = {
        "e": "extended",
        "searcher": {key: old for key, old in before["searcher"].items() if key in _FREE},
        "max_restarts": before["max_restarts"],
        "events": events,
    }
    search = Search(after)
    state = search.initial()
    search.apply(state, [event])
    if state.ended:
        raise SubmitError(_ENDED_BY_RULE.format(one.view.id))
    if state.done:
        raise SubmitError(_NOTHING.format(one.view.id, GROWS.get(search.name, "max_trials")))
    begins = dict(_begins(one, after, state))
    return Extension(event, state, begins, (*_bare(begins), *_uneven(after, ended, state)))


def _bare(begins: Mapping[int, Begin]) -> Iterator[str]:
    may_go_on = [b for b in begins.values() if b.past and b.past.outcome == OUT_OF_OPS]
    if bare := sum(begin.continued.uuid is None for begin in may_go_on):
        begun = counted(len(may_go_on), "trial")
        yield f"from scratch, for lack of a checkpoint, if they go on: {bare} of {begun}"


def _uneven(config: Mapping[str, Any], ended: State, state: State) -> Iterator[str]:
    divisor, notes = config["searcher"].get("divisor", 1), {}
    for before, bracket in zip(ended.brackets, state.brackets, strict=True):
        units = [rung.units for rung in bracket.rungs]
        if len(units) > len(before.rungs) and units[-1] < int(units[-2] * divisor):
            shown = ", ".join(map(str, units))
            notes[shown] = f"searcher: the step to the last rung is a short one: rungs at {shown}"
    yield from notes.values()


def _refused(number: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """The changes (but of secrets) with which the decisions up to now would have been others."""
    old, new = masked_values(before["searcher"]), masked_values(after["searcher"])
    spaces = [masked_values(config["hyperparameters"]) for config in (before, after)]
    seeds = [config["reproducibility"]["experiment_seed"] for config in (before, after)]
    if old["name"] != new["name"]:
        yield _KEEPS.format("searcher.name", number)
        return
    for key in sorted({*old, *new} - {*_FREE}):
        if old.get(key) != new.get(key):
            yield _KEEPS.format(f"searcher.{key}", number)
    if spaces[0] != spaces[1]:
        yield _KEEPS.format("hyperparameters", number)
    if seeds[0] != seeds[1]:
        yield _KEEPS.format("reproducibility.experiment_seed", number)
    lengths = [length_of(searcher) for searcher in (old, new)]
    if (lengths[0][0] is None) != (lengths[1][0] is None) or lengths[0][1] != lengths[1][1]:
        yield _KEEPS.format("searcher.max_length", number)
    elif (lengths[1][0] or 0) < (lengths[0][0] or 0):
        yield _SMALLER.format("max_length", lengths[1][0], lengths[0][0], number)
    for key in _LARGER:
        if (new.get(key) or 0) < (old.get(key) or 0):
            yield _SMALLER.format(key, new.get(key), old[key], number)


def _until_the_rule(config: Mapping[str, Any], events: Events) -> Events:
    """The events up to where `searcher.stop` ended the search: stopped trials may go on now."""
    search = Search(config)
    if search.stop_rule is None:
        return events
    state = search.initial()
    for count, event in enumerate(events, 1):
        search.apply(state, [event])
        if state.ended:
            return events[:count]
    return events


def _given_back(one: ExperimentSnapshot, state: State) -> list[dict[str, Any]]:
    ended, numbers = {}, one.facts.trial_ids
    for worker, index in state.workers.items():
        runs = one.directory.trial(numbers[index]).runs() if index < len(numbers) else []
        outcomes = [run.outcome for run in runs if run.outcome in _ENDED]
        ended[worker] = outcomes[-1] if outcomes else "preempted"
    return state.run_ended_events(ended)


def _begins(
    one: ExperimentSnapshot, config: Mapping[str, Any], state: State
) -> Iterator[tuple[int, Begin]]:
    storages = Storages(config["checkpoint_storage"], one.directory.store.path)
    for index, (number, trial) in enumerate(zip(one.facts.trial_ids, state.trials, strict=False)):
        row = one.trials.get(number)
        reason = row.end_reason if row is not None and trial.status == "closed" else None
        past = Past(
            _outcome(trial), f"in experiment {one.view.id}{(reason and ': ' + reason) or ''}"
        )
        begin = begin_of(one, number, storages, past)
        if begin is not None:
            yield index, begin


def _outcome(trial: SearchTrial) -> str:
    if trial.status != "closed":
        return OUT_OF_OPS
    return "completed" if trial.outcome == "stopped" else trial.outcome or "completed"
