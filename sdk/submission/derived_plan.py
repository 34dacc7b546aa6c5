"""Experiments that come from others, which stay as they are: continued, forked, or run again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detslurm._base.quantities import counted
from detslurm.config import LoadedExperiment, load_experiment, load_site
from detslurm.config.secret_names import MASK
from detslurm.config.secret_values import masked_sample, restored_sample
from detslurm.sdk import settings
from detslurm.sdk.errors import SubmitError
from detslurm.sdk.provenance.differences import software_warning
from detslurm.sdk.submission.begins import begin_of, is_there, missing_text, sources_of
from detslurm.sdk.submission.derivation import Begin, Derivation
from detslurm.sdk.submission.extension import GROWS, extension_of
from detslurm.sdk.submission.first_points import with_named_trials
from detslurm.sdk.submission.planning import Plan, make_plan
from detslurm.sdk.submission.sources import checkpoint_id
from detslurm.sdk.submission.submit import check
from detslurm.searcher import State, decides_by_results, trial_count
from detslurm.searcher.method import length_of
from detslurm.searcher.sampling import Samples
from detslurm.storage import Storages
from detslurm.store import Store, flat, fold_trial
from detslurm.store.provenance import Software, read_kept
from detslurm.store.trial_fold import OUTPUTS

if TYPE_CHECKING:
    from detslurm.sdk.experiments.snapshot import ExperimentSnapshot
    from detslurm.sdk.jobs.queues import Queues

Config = Mapping[str, Any] | str | os.PathLike[str]

_SOURCES = ("source_trial_id", "source_checkpoint_uuid")
_LENGTHS = ("batches", "records", "epochs")


@dataclass(frozen=True)
class Changes:
    """The differences: a configuration merged over the other's, keys, code."""

    config: Config | None = None
    overrides: Sequence[str] = ()
    context_dir: os.PathLike[str] | str | None = None
    includes: Iterable[os.PathLike[str] | str] = ()
    cluster: str | None = None
    method_runner: str | None = None

    def __post_init__(self) -> None:
        settings.as_list("overrides", self.overrides)

    @property
    def any(self) -> bool:
        """Whether anything about the training may be different."""
        return bool(self.config is not None or self.overrides or self.context_dir is not None)


def plan_continuation(
    one: ExperimentSnapshot, queues: Queues, changes: Changes, trial_id: int | None = None
) -> Plan:
    """An experiment whose trials go on where those of `one` ended, or where one of them did."""
    _refuse_foreign(one)
    if not one.view.finished:
        raise SubmitError(
            f"experiment {one.view.id} is {one.view.state}: only finished ones are continued"
            " (`activate` resumes a paused one)"
        )
    if one.view.state == "COMPLETED" and trial_id is None and not changes.any:
        raise SubmitError(
            f"experiment {one.view.id} is COMPLETED: give it more to do, such as"
            f" --config {_more(one)}"
        )
    base = _base(one)
    searcher = base["searcher"]["name"]
    decides = decides_by_results(base["searcher"])
    if trial_id is not None:
        base = _of_one_trial(one, base, trial_id)
    loaded = _loaded(one, base, changes)
    if trial_id is None and decides and decides_by_results(loaded.config.to_dict()["searcher"]):
        return _plan_extension(one, queues, base, changes, loaded)
    if searcher == "custom" and loaded.config.to_dict()["searcher"].get("max_length") is None:
        raise SubmitError(
            f"the method of experiment {one.view.id} decided how long its trials train: set how"
            f" long trial {trial_id} is to, such as --config searcher.max_length.batches=2000"
        )
    begins = dict(_begins(one, loaded, trial_id))
    if not begins:
        raise SubmitError(
            f"experiment {one.view.id} has no checkpoint to go on from:"
            f"{missing_text(one, trial_id)}"
            f" `detslurm experiment rerun {one.view.id}` trains it from the beginning"
        )
    plan = _planned(one, queues, _without_sources(one, base, changes, loaded, begins), changes)
    return replace(
        plan,
        derivation=Derivation(one.view.id, "continue", begins),
        sources={**plan.sources, **sources_of(one, begins)},
        warnings=(*plan.warnings, *_from_scratch(plan, begins), *_software_notes(one, plan)),
    )


def _plan_extension(
    one: ExperimentSnapshot,
    queues: Queues,
    base: Mapping[str, Any],
    changes: Changes,
    loaded: LoadedExperiment,
) -> Plan:
    config = loaded.config.to_dict()
    extension = extension_of(one, base, config, changes.method_runner)
    plan = _planned(one, queues, loaded, changes, extension.state)
    derivation = Derivation(one.view.id, "continue", extension.begins, extension.event)
    return replace(
        plan,
        derivation=derivation,
        sources={**plan.sources, **sources_of(one, extension.begins)},
        warnings=(*plan.warnings, *extension.notes, *_software_notes(one, plan)),
    )


def plan_copy(
    one: ExperimentSnapshot,
    queues: Queues,
    changes: Changes,
    origin: str,
    from_checkpoint: str | None = None,
) -> Plan:
    """An experiment with the configuration, seeds and code of `one`, but for the changes."""
    _refuse_foreign(one)
    base = _base(one)
    if from_checkpoint is not None:
        kept = {key: value for key, value in base["searcher"].items() if key not in _SOURCES}
        base["searcher"] = {
            **kept,
            "source_checkpoint_uuid": checkpoint_id(one.directory.store, from_checkpoint),
        }
    elif origin == "fork":
        base = _with_outputs(one, base, changes)
    plan = _planned(one, queues, _loaded(one, base, changes), changes)
    notes = _software_notes(one, plan) if origin == "rerun" else _outputs_notes(one, plan)
    return replace(
        plan, derivation=Derivation(one.view.id, origin, {}), warnings=(*plan.warnings, *notes)
    )


def _with_outputs(
    one: ExperimentSnapshot, base: dict[str, Any], changes: Changes
) -> dict[str, Any]:
    """`base`, beginning with the outputs of the only trial of `one`, if it has left any."""
    outputs, searcher = _finished_outputs(one, base), base["searcher"]
    if outputs is None:
        return base
    if (
        one.facts.created.source_outputs is not None
    ):  # it began with outputs itself: has its own now
        searcher = {key: value for key, value in searcher.items() if key not in _SOURCES}
    config = _loaded(one, {**base, "searcher": searcher}, changes).config.to_dict()
    begins_otherwise = any(config["searcher"].get(key) is not None for key in _SOURCES)
    is_single = config["searcher"]["name"] == "single"
    if begins_otherwise or not is_single or config.get("outputs") is None:
        return base
    return {**base, "searcher": {**searcher, "source_checkpoint_uuid": outputs}}


def _finished_outputs(one: ExperimentSnapshot, base: Mapping[str, Any]) -> str | None:
    if base["searcher"]["name"] != "single" or not one.view.finished:
        return None
    number = one.facts.trial_ids[0]
    storages = Storages(base["checkpoint_storage"], one.directory.store.path)
    view = fold_trial(one.directory.trial(number), one.facts.context(number))
    found = [c for c in view.checkpoints if c.kind == OUTPUTS and c.state == "COMPLETED"]
    return next((c.uuid for c in found if is_there(c, storages)), None)


def _outputs_notes(one: ExperimentSnapshot, plan: Plan) -> list[str]:
    if plan.source_outputs is None:
        return []
    return [
        f"outputs: begins with a copy of {plan.source_outputs}"
        f" (`detslurm experiment rerun {one.view.id}` begins without)"
    ]


def _refuse_foreign(one: ExperimentSnapshot) -> None:
    number = one.view.id
    if owner := one.directory.foreign_owner():
        raise SubmitError(
            f"experiment {number} belongs to {owner}: its code and the whole of its configuration"
            f" are theirs alone; they can give it to you: `detslurm experiment bundle {number}`"
        )
    if not one.facts.created.managed:
        raise SubmitError(
            f"experiment {number} was not submitted through detslurm: run its script again"
        )


def _base(one: ExperimentSnapshot) -> dict[str, Any]:
    fields = one.view.desired.fields
    shown: dict[str, Any] = {k: fields[k] for k in ("name", "description", "labels") if k in fields}
    if "folder" in fields:
        shown |= {"workspace": one.view.workspace, "project": one.view.project}
    return {**one.directory.config(), **shown}


def _more(one: ExperimentSnapshot) -> str:
    searcher = one.directory.config()["searcher"]
    key = GROWS.get(searcher["name"], "max_trials")
    if decides_by_results(searcher) and key != "max_length":
        return f"searcher.{key}=200"
    length = searcher.get("max_length")
    unit = next(iter(length), "batches") if isinstance(length, dict) else "batches"
    return f"searcher.max_length.{unit}=2000"


def _of_one_trial(one: ExperimentSnapshot, base: dict[str, Any], trial_id: int) -> dict[str, Any]:
    row = one.trials.get(trial_id)
    if row is None:
        raise SubmitError(f"trial {trial_id} is not one of experiment {one.view.id}")
    searcher = base["searcher"]
    compared = ("metric", "smaller_is_better", "metrics", "constraints")
    common = {key: searcher[key] for key in compared if key in searcher}
    return {
        **base,
        "hyperparameters": _constants(restored_sample(row.hparams or {}, base["hyperparameters"])),
        "searcher": {"name": "single", "max_length": _whole_length(searcher), **common},
    }


def _whole_length(searcher: Mapping[str, Any]) -> Any:
    """How long a trial of the search trains if nothing stops it; None where only its code knows."""
    length = searcher.get("max_length")
    if length is None and searcher["name"] == "pbt":
        units, unit = length_of(searcher, "length_per_round")
        whole = (units or 1) * searcher["num_rounds"]
        return whole if unit is None else {unit: whole}
    if length is None and searcher.get("time_metric") in _LENGTHS and "max_time" in searcher:
        return {searcher["time_metric"]: searcher["max_time"]}
    return length


def _constants(hparams: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _constants(value)
        if isinstance(value, Mapping) and "type" not in value
        else {"type": "const", "val": value}
        for name, value in hparams.items()
    }


def _loaded(one: ExperimentSnapshot, base: Mapping[str, Any], changes: Changes) -> LoadedExperiment:
    given = {} if changes.config is None else changes.config
    source = given if isinstance(given, Mapping) else os.fspath(given)
    store = one.directory.store
    loaded = load_experiment(source, overrides=changes.overrides, base=base, root=store.path)
    return with_named_trials(loaded, store)


def _without_sources(
    one: ExperimentSnapshot,
    base: dict[str, Any],
    changes: Changes,
    loaded: LoadedExperiment,
    begins: Mapping[int, Begin],
) -> LoadedExperiment:
    """Where every trial goes on, their first checkpoints are not needed: they may be gone."""
    named = [key for key in _SOURCES if base["searcher"].get(key) is not None]
    everyone = len(begins) == len(list(_plans(loaded)))
    if not named or not everyone:
        return loaded
    searcher = {key: value for key, value in base["searcher"].items() if key not in _SOURCES}
    return _loaded(one, {**base, "searcher": searcher}, changes)


def _planned(
    one: ExperimentSnapshot,
    queues: Queues,
    loaded: LoadedExperiment,
    changes: Changes,
    state: State | None = None,
) -> Plan:
    code = one.directory.code
    if changes.context_dir is None and not code.is_dir():
        raise SubmitError(f"the code of experiment {one.view.id} is gone: name it with --context")
    store = Store.open(one.directory.store.path)
    plan = make_plan(
        loaded,
        Path(changes.context_dir or code),
        [Path(path) for path in settings.as_list("includes", changes.includes)],
        cluster=queues.cluster(changes.cluster or one.view.cluster or "auto"),
        site=load_site(),
        store=store,
        method_runner=changes.method_runner,
        parent=one.directory,
        state=state,
    )
    lacking = left_out(loaded.config.to_dict()) if one.facts.created.imported else []
    return replace(plan, warnings=(*plan.warnings, *check(plan, store), *lacking))


def _software_notes(one: ExperimentSnapshot, plan: Plan) -> list[str]:
    recorded = one.facts.created.provenance
    if recorded is None or plan.provenance is None:
        return []
    before = read_kept(one.directory.store, recorded.software, Software)
    found = software_warning(one.view.id, before, plan.provenance.software)
    return [] if found is None else [found]


def left_out(config: Mapping[str, Any]) -> list[str]:
    """Return a warning if `config` lacks values that the experiment's bundle has left out."""
    lacking = []
    for name, value in flat(config):
        if name.startswith("environment.environment_variables."):
            value = list(dict(entry.partition("=")[::2] for entry in value).values())  # last wins
        if MASK in str(value):
            lacking.append(name)
    if not lacking:
        return []
    return [
        f"asterisks stand for what the bundle has left out, in {', '.join(lacking)}: give these"
        " values with --config, or your code gets the asterisks"
    ]


# -- where trials begin ----------------------------------------------------------------------------


def _plans(loaded: LoadedExperiment) -> Iterator[dict[str, Any]]:
    config = loaded.config.to_dict()
    searcher, space = config["searcher"], config["hyperparameters"]
    seed = config["reproducibility"]["experiment_seed"]
    samples = Samples(searcher, space, seed)
    for index in range(trial_count(searcher, space)):
        yield dict(samples.plan(index).hparams)


def _begins(
    one: ExperimentSnapshot, loaded: LoadedExperiment, trial_id: int | None
) -> Iterator[tuple[int, Begin]]:
    config = loaded.config.to_dict()
    if decides_by_results(config["searcher"]):
        raise SubmitError(
            f"searcher: the results of experiment {one.view.id} decided nothing, and would now:"
            " fork the experiment"
        )
    created = one.facts.created
    sources = [trial_id] if trial_id is not None else one.facts.trial_ids[: created.trials]
    storages = Storages(config["checkpoint_storage"], one.directory.store.path)
    space = config["hyperparameters"]
    for index, (source, planned) in enumerate(zip(sources, _plans(loaded), strict=False)):
        hparams = masked_sample(planned, space)
        begin = begin_of(one, source, storages)
        if begin is None:
            continue
        if len(sources) > 1 and begin.continued.hparams != hparams:
            raise SubmitError(
                f"trial {source} had {begin.continued.hparams}, and with the changes it would be"
                f" {hparams}: continue one trial with --trial, or fork the experiment"
            )
        yield index, begin


def _from_scratch(plan: Plan, begins: Mapping[int, Begin]) -> list[str]:
    missing = plan.trials - len(begins)
    if not missing:
        return []
    return [f"from scratch, for lack of a checkpoint: {missing} of {counted(plan.trials, 'trial')}"]
