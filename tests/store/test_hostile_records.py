"""Another member of a shared store writes what they like: readers skip it, and say so."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from detslurm.store import CorruptRecord, Store, fold_trial, fs, trial_metrics
from detslurm.store.experiment_fold import ExperimentFacts, experiment_view
from detslurm.store.facts import read_record
from detslurm.store.frame import frame
from detslurm.store.gc_policy import FIELD, GCPolicy
from detslurm.store.records import LARGEST, Created, Fact, Set, Submitted
from detslurm.store.run_log import read_records
from detslurm.store.views import ExperimentView, TrialView
from tests.store import scenes
from tests.store.listing import rows_of

WRONG: list[Any] = [[1], {"a": 1}, "x", -1, 10**12, 10**30, 1e300, float("nan"), True, None, [[]]]

START = {"hparams": {"lr": 1}, "seed": 1, "time": 1.0, "host": "n", "index": 0, "process": "p",
         "job": {"cluster": "c", "ref": "1", "job_id": "1", "nodes": ["n"], "restart_count": 0},
         "resume": {"uuid": "u", "steps": 1}, "continues": False, "fencing_token": 1,
         "counted_bytes": {"1": 9}, "continued": None, "v": 1, "type": "run"}  # fmt: skip
END = {"outcome": "error", "reason": "r", "exit_code": 1, "time": 2.0, "exclude": ["n"], "v": 1,
       "cause": "c", "failure": {"error": "E", "digest": "d"}, "not_staged": {"n": "full"},
       "usage": {"node_seconds": 9.0, "energy": {"nvml": {"joules": 1.0, "nodes": 1}}},
       "deleted": "d", "type": "end"}  # fmt: skip
RECORDS: list[dict[str, Any]] = [
    {**scenes.metrics(1, "validation", loss=1.0), "time": 1.0, "rank": 0, "batch": {"a": [1]}},
    {**scenes.metrics(1, "training", loss=1.0), "time": 1.0},
    {**scenes.checkpoint("u", 1), "time": 1.0, "storage": None},
    {"t": "checkpoint_started", "uuid": "u", "storage": {"type": "shared_fs"}},
    {"t": "checkpoint_deleted", "uuid": "u"},
    {"t": "storage", "storage": {"type": "shared_fs"}},
    {"t": "progress", "value": 0.5},
    {"t": "status", "text": "x"},
    {"t": "run_metadata", "data": {"a": 1}},
    {"t": "alert", "time": 1.0, "level": "info", "title": "t", "description": "d"},
    {"t": "early_exit", "reason": "invalid_hp", "text": "x"},
    {"t": "non_retryable", "reason": "x"},
    {"t": "completed", "length": 3, "metric": 1.0},
    {"t": "out_of_ops"},
]


def spoiled(sound: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The record with each of its fields in turn, nested ones too, of each wrong type."""
    for name, value in sound.items():
        yield from ({**sound, name: wrong} for wrong in WRONG)
        if isinstance(value, dict):
            yield from ({**sound, name: part} for part in spoiled(value))


def convinced(view: TrialView | ExperimentView) -> None:
    """The view has the types that its own readers rely on."""
    msgspec.convert(msgspec.to_builtins(view, str_keys=True), type(view), str_keys=True)


CREATED = {"type": "created", "n": 1, "name": "a", "first_trial": 1, "trials": 2, "time": 1.0,
           "description": "d", "labels": ["a"], "notes": "n", "workspace": "w", "project": "p",
           "owner": "o", "managed": True, "metric": "loss", "smaller_is_better": True, "slots": 1,
           "pool": "main", "cluster": "slurm", "max_restarts": 1, "on_preempt": "auto", "v": 1,
           "search": True, "workers": 1, "max_slots": 4, "budget": 1.0, "parent": 1,
           "environment": None, "sources": [1], "kill_wait": 30, "signal_lead": 1,
           "format": 1}  # fmt: skip


def examples(kind: Any) -> dict[str, Any]:
    """A sound fact of a kind, with every field."""
    values = {"str": "x", "uuid": "u", "intent": "pause", "resources": {"a": 1}}
    found: dict[str, Any] = {"type": kind.__struct_config__.tag, "time": 1.0, "by": "me"}
    for field in msgspec.structs.fields(kind):
        if field.name not in found and field.name != "n":
            sound = field.default if field.default is not msgspec.NODEFAULT else None
            found[field.name] = values.get(field.name, sound)
    return found


def facts_of(kind: Any) -> Iterator[dict[str, Any]]:
    """Every spoiled fact of a kind."""
    if kind is Set:
        for field in ("name", "labels", "folder", "resource_pool", "max_slots", "budget", FIELD):
            yield from ({"type": "set", "field": field, "value": wrong} for wrong in WRONG)
    sound = examples(kind)
    if kind is Submitted:
        sound["jobs"] = [{"job_id": "7", "count": 2, "array": True}]
        for job in spoiled(sound["jobs"][0] | {"each": 1, "first_index": 0, "dependency": ""}):
            yield {**sound, "jobs": [job]}
        sound["request"] = {"folder": "/a", "dependency": None}
    yield from spoiled(CREATED if kind is Created else sound)


@pytest.mark.parametrize("kind", get_args(Fact), ids=lambda kind: str(kind.__name__))
def test_every_field_of_every_fact(kind: Any) -> None:
    """A wrong type or number is a named problem, or harmless; the experiment is shown."""
    after = {"type": "submitted", "n": 3, "jobs": [{"job_id": "8", "count": 2}]}
    for plain in facts_of(kind):
        before = [] if kind is Created else [CREATED]
        facts = ExperimentFacts().fold([*before, {**plain, "n": len(before) + 1}, after])
        assert len(facts.trial_ids) <= LARGEST and facts.elements <= LARGEST
        assert facts.budget is None or facts.budget >= 0
        assert facts.trials_at_once is None or facts.worker_limit >= 0
        assert GCPolicy.of({}, facts.desired.fields)
        convinced(experiment_view(1, facts, []))


def _part(what: str) -> dict[str, Any]:
    return {"start": START, "end": END}.get(what) or RECORDS[int(what.split("-")[1])]


@pytest.mark.parametrize(
    "what", ["start", "end", *(f"{r['t']}-{i}" for i, r in enumerate(RECORDS))]
)
def test_every_field_of_a_run(store: Store, what: str) -> None:
    """The trial is shown, and its other records are."""
    trial = scenes.trial(store)
    trial.create()
    trial.start_path(1).write_bytes(frame(START))
    trial.end_path(1).write_bytes(frame(END))
    log, sound = trial.records_path(1), frame(scenes.checkpoint("a", 1))
    log.write_bytes(sound)
    for plain in spoiled(_part(what)):
        if what in ("start", "end"):
            trial.path.joinpath(f"run-1.{what}.json").write_bytes(frame(plain))
        else:
            log.write_bytes(sound + frame(plain))
        view = fold_trial(trial)
        convinced(view)
        assert [c.uuid for c in view.checkpoints][:1] == ["a"]
        assert trial_metrics(trial) is not None


@pytest.mark.parametrize("name", ["log", "record"])
@pytest.mark.parametrize("what", ["link", "device", "pipe", "hole", "directory"])
def test_files_that_are_none(store: Store, tmp_path: Path, name: str, what: str) -> None:
    """No link is followed, nothing is waited for, and a hole of 2 TB takes no memory."""
    trial = scenes.trial(store)
    scenes.run(trial, [scenes.metrics(1, loss=1.0)])
    path = trial.records_path(1) if name == "log" else trial.end_path(1)
    (tmp_path / "private").write_bytes(path.read_bytes() if path.exists() else frame(END))
    path.unlink(missing_ok=True)
    _make(what, path, tmp_path / "private")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    view = fold_trial(trial)
    assert (view.steps, view.run_count) == (1 if name == "record" else 0, 1)
    assert [problem.path for problem in view.problems] == [str(path)]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 500_000  # KiB
    if name == "record":
        assert (read_record(path) or {})["type"] == "corrupt"
    with pytest.raises(CorruptRecord):
        fs.read_file(path)


def _make(what: str, path: Path, private: Path) -> None:
    if what == "link":
        path.symlink_to(private)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "hole":
        path.touch()
        os.truncate(path, 2 << 40)
    else:
        path.mkdir()


def test_a_hole_in_a_short_log(store: Store) -> None:
    """Bytes without an end of a line are a problem before they fill the memory."""
    trial = scenes.trial(store)
    scenes.run(trial, [scenes.metrics(1, loss=1.0)])
    os.truncate(trial.records_path(1), 1 << 30)
    content = read_records(trial.records_path(1))
    assert len(content.records) == 1 and "bytes" in content.problems[0].reason


def test_the_ledger(store: Store) -> None:
    """A fact that would leave no ids to the others counts as one that can't be read."""
    for wrong in (*WRONG, 1 << 52):
        for name in ("first_trial", "trials", "id"):
            fact = {"type": "trials", "first_trial": 1, "trials": 1, "id": 1, name: wrong}
            store.ledger.log.append({**fact})
    for wrong in WRONG:
        store.ledger.log.append({"type": "touched", "id": wrong})
    made = scenes.experiment(store)
    assert made.created().first_trial <= 100 * LARGEST
    assert [row.id for row in rows_of(store)] == [made.id]
