"""Compacted metrics are the same metrics, only faster to read."""

from __future__ import annotations

import errno
import math
import os
import re
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import msgspec
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm.sdk.disk.deletion import delete
from detslurm.sdk.experiments import snapshot
from detslurm.sdk.trials.summary_metrics import summary
from detslurm.store import (
    ExperimentDir,
    RunLog,
    Store,
    StoreError,
    StoreFault,
    compact,
    compaction,
    fold_experiment,
    fold_facts,
    fold_trial,
    metric_columns,
    trial_metrics,
)
from detslurm.store.overviews import MOST, overviews
from detslurm.store.reading import logged_metrics
from detslurm.store.records import CheckpointDeleted
from detslurm.store.saved_views import saved_views
from detslurm.store.series import logged_series
from tests.counting import calls
from tests.docs.pages import REPOSITORY, blocks
from tests.store import scenes
from tests.store.faults import failing
from tests.store.test_frame import same

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.lists(st.floats(), max_size=2)
)
MANY = 50_000
METRICS = st.dictionaries(
    st.sampled_from(["loss", "a.b", "a/b", "", ".", "ä"]),
    LEAVES | st.dictionaries(st.sampled_from("xy"), LEAVES, max_size=2),
    max_size=4,
)
RECORDS = st.lists(
    st.builds(
        lambda group, steps, metrics, more: {
            "t": "metrics", "group": group, "steps": steps, "metrics": metrics, **more
        },
        st.sampled_from(["training", "validation", "a/b"]),
        st.integers(0, 30),
        METRICS,
        st.fixed_dictionaries({}, optional={
            "time": st.floats(0, 2e9), "batch": st.lists(METRICS, max_size=2)
        }),
    ),
    max_size=15,
)  # fmt: skip


def _plain(rows: Any) -> list[dict[str, Any]]:
    return sorted(
        (
            {
                "group": row.group,
                "steps": row.steps,
                "metrics": row.metrics,
                "run": row.run,
                "time": row.time,
                "batch": row.batch,
            }
            for row in rows
        ),
        key=lambda row: (row["steps"], row["group"]),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=3))
def test_compacting_changes_nothing_that_is_read(
    tmp_path_factory: pytest.TempPathFactory, trials: list[list[dict[str, Any]]]
) -> None:
    """Every row of every trial comes back, with NaN, nested and missing keys and odd names."""
    store = Store.open(tmp_path_factory.mktemp("compact") / "store")
    with mock.patch.object(os, "fsync"):
        made = scenes.experiment(store, trials=len(trials))
        for number, records in enumerate(trials, 1):
            scenes.run(made.trial(number), records, "completed")
        compact(made)
    for number in range(1, len(trials) + 1):
        trial = made.trial(number)
        logged, compacted = _plain(logged_metrics(trial)), _plain(trial_metrics(trial))
        assert len(logged) == len(compacted)
        for one, other in zip(logged, compacted, strict=True):
            assert _same_numbers(one, other)
        assert len(trial_metrics(trial, "a/b")) == sum(row["group"] == "a/b" for row in logged)


def _same_numbers(one: Any, other: Any) -> bool:
    """As `same`, but an integer among floats may have become a float."""
    if isinstance(one, (int, float)) and isinstance(other, float) and not isinstance(one, bool):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_numbers(one[k], other[k]) for k in one)
    return same(one, other)


def _finished(store: Store, records: list[dict[str, Any]]) -> ExperimentDir:
    made = scenes.experiment(store)
    scenes.run(made.trial(1), records, "completed")
    return made


def test_columns_are_the_same_from_either_source(store: Store) -> None:
    """Numbers by step, NaN where a step lacks one, words left out, nested names dotted."""
    made = _finished(
        store,
        [
            scenes.metrics(1, loss=1, word="x", deep={"er": 0.5}),
            scenes.metrics(2, loss=math.nan, mixed=1),
            scenes.metrics(3, loss=0.25, mixed="now a word"),
            scenes.metrics(3, "validation", acc=1.0),
        ],
    )
    trial = made.trial(1)
    plain = metric_columns(trial, "training")
    compact(made)
    fast = metric_columns(trial, "training")
    assert list(fast.steps) == list(plain.steps) == [1, 2, 3]
    assert set(fast.metrics) == set(plain.metrics) == {"loss", "deep.er", "mixed"}
    for name in plain.metrics:
        assert same([float(v) for v in fast.metrics[name]], [float(v) for v in plain.metrics[name]])
    assert set(metric_columns(trial, "training", ["loss"]).metrics) == {"loss"}
    assert list(metric_columns(trial, "nothing").steps) == []


def test_plain_h5py_and_pandas_read_the_named_columns(store: Store) -> None:
    """As docs/store.md describes it: a column a metric, NaN where a row lacks it."""
    made = scenes.experiment(store, trials=2)
    scenes.run(
        made.trial(1),
        [
            scenes.metrics(1, loss=0.5, phase="warm", acc={"top/1": 1}, seen=7),
            scenes.metrics(2, loss=0.25, seen=8),
            scenes.metrics(2, "validation", loss=0.75),
        ],
        "completed",
    )
    scenes.run(made.trial(2), [scenes.metrics(1, loss=math.nan, seen=9)], "completed")
    with h5py.File(compact(made), "r") as file:
        assert (file.attrs["format"], file.attrs["version"]) == ("detslurm metrics", 4)
        assert file.attrs["experiment"] == made.id
        assert file["trials/id"][:].tolist() == [1, 2]
        assert list(file["groups"]) == ["training", "validation"]
        group = file["groups/training"]
        assert list(group["metrics"]) == ["loss", "phase", "acc.top%2F1", "seen"]
        assert group["metrics/seen"].dtype == "int64"
        assert group["metrics/phase"].asstr()[:].tolist() == ['"warm"', "", ""]
        second = slice(*group["offsets"][1:3])
        assert group["trial"][second].tolist() == [2]
        frame = pandas.DataFrame(
            {name: group[name][:] for name in ("trial", "run", "steps")}
            | {c.attrs["name"]: c[:] for c in group["metrics"].values() if c.dtype.kind != "O"}
        )
    assert frame["trial"].tolist() == [1, 1, 2]
    assert frame["steps"].tolist() == [1, 2, 1]
    assert frame["loss"].tolist()[:2] == [0.5, 0.25]
    assert frame["loss"].isna().tolist() == [False, False, True]
    assert frame["acc.top/1"].isna().tolist() == [False, True, True]
    assert frame["seen"].tolist() == [7, 8, 9]


def test_the_page_about_the_store_reads_the_file_as_it_says(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its lines of Python, run beside the file."""
    made = scenes.experiment(store, trials=2)
    for number, loss in ((1, 0.5), (2, 0.25)):
        records = [scenes.metrics(1, loss=loss, phase="warm"), scenes.metrics(2, loss=loss + 1)]
        scenes.run(made.trial(number), records, "completed")
    monkeypatch.chdir(compact(made).parent)
    page = REPOSITORY / "docs" / "store.md"
    (lines,) = [block.text for block in blocks(page) if "h5py.File" in block.text]
    exec(lines, {})
    assert re.search(r"1 +0.50\n2 +0.25\n", capsys.readouterr().out)


def test_names_that_hdf5_can_not_have_stay_apart(store: Store) -> None:
    """A dotted name and a nested one, slashes, dots alone, nothing: each its own column."""
    metrics: dict[str, Any] = {
        "a.b": 1,
        "a": {"b": 2},
        "a/b": 3,
        "a%2Fb": 4,
        "": 5,
        ".": 6,
        "..": 7,
        "\0": 8,
    }
    odd: dict[str, Any] = {"": {"batch": 1}}
    made = _finished(store, [scenes.metrics(1, **metrics), scenes.metrics(2, **odd)])
    compact(made)
    assert [row.metrics for row in trial_metrics(made.trial(1))] == [metrics, odd]


def test_a_file_of_another_version_is_passed_over(store: Store) -> None:
    """Older and newer layouts, and HDF5 files of others: the logs have everything."""
    made = _finished(store, [scenes.metrics(1, loss=1)])
    for attributes in ({"schema": 1}, {"format": "detslurm metrics", "version": 2}, {}):
        with h5py.File(made.metrics_path, "w") as file:
            file.attrs.update(attributes)
        assert [row.metrics for row in trial_metrics(made.trial(1))] == [{"loss": 1}]
        assert list(metric_columns(made.trial(1), "training").metrics["loss"]) == [1]


def test_only_what_is_finished_compacts(store: Store) -> None:
    """A running experiment would give a file that lies soon."""
    with pytest.raises(StoreError, match="ACTIVE"):
        compact(scenes.experiment(store))


def test_the_originals_stay(store: Store) -> None:
    """The logs hold the facts about checkpoints too and are never removed."""
    made = _finished(store, [scenes.metrics(1, loss=1), scenes.checkpoint("c", 1)])
    with mock.patch("os.chmod", side_effect=PermissionError):  # as on vfat, where modes are fixed
        path = compact(made)
    assert path == made.metrics_path
    assert made.trial(1).records_path(1).exists()
    path.unlink()
    assert [row.metrics for row in trial_metrics(made.trial(1))] == [{"loss": 1}]


def test_a_damaged_or_old_file_is_passed_over(store: Store) -> None:
    """Garbage in its place, or a later run of the trial: the logs are read."""
    made = _finished(store, [scenes.metrics(1, loss=1)])
    trial = made.trial(1)
    whole = compact(made).read_bytes()
    for damage in (b"", b"garbage", whole[:600]):
        made.metrics_path.write_bytes(damage)
        assert [row.metrics for row in trial_metrics(trial)] == [{"loss": 1}]
    compact(made)
    scenes.claim(trial, 2, continues=True)
    with RunLog.open(trial.records_path(2)) as log:
        log.append(scenes.metrics(1, loss=2))
    assert [row.metrics for row in trial_metrics(trial)] == [{"loss": 2}]
    assert list(metric_columns(trial, "training").metrics["loss"]) == [2]


def test_a_run_that_begins_meanwhile_is_not_hidden(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is claimed while the logs are read is read from its log."""
    made = _finished(store, [scenes.metrics(1, loss=1)])
    trial = made.trial(1)

    def read(*args: Any, **kwargs: Any) -> Any:
        rows = logged_metrics(*args, **kwargs)
        scenes.claim(trial, 2, continues=True)
        with RunLog.open(trial.records_path(2)) as log:
            log.append(scenes.metrics(1, loss=2))
        return rows

    monkeypatch.setattr(compaction, "logged_metrics", read)
    compact(made)
    assert [row.metrics for row in trial_metrics(trial)] == [{"loss": 2}]


def test_a_deletion_meanwhile_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waited for the end may delete it at once: nobody would look for a late file."""
    made = _finished(store, [scenes.metrics(1, loss=1)])
    storage = {"type": "directory", "container_path": str(store.path)}
    made.write_config({"checkpoint_storage": storage}, "")

    def read(*args: Any, **kwargs: Any) -> Any:
        rows = logged_metrics(*args, **kwargs)
        delete(snapshot.read(made))
        return rows

    monkeypatch.setattr(compaction, "logged_metrics", read)
    with pytest.raises(StoreError, match="is DELETED"):
        compact(made)
    assert [path.name for path in made.path.iterdir()] == ["facts"]


def test_a_compaction_that_fails_leaves_nothing(store: Store) -> None:
    """No half file appears, and no litter stays."""
    made = _finished(store, [scenes.metrics(1, loss=1)])
    fold_experiment(made)  # writes the summary, by a rename of its own
    with failing("rename", 28), pytest.raises(StoreError):
        compact(made)
    assert not made.metrics_path.exists()
    assert not [path for path in made.path.iterdir() if path.name.endswith(".tmp")]


def test_a_compaction_that_finds_no_room_is_a_fault_of_the_store(store: Store) -> None:
    """HDF5 itself may end the process at a write that fails."""
    made = _finished(store, [scenes.metrics(1, loss=1)])
    fold_experiment(made)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StoreFault, match=re.escape(os.strerror(errno.EFBIG))):
            compact(made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [path for path in made.path.iterdir() if path.name.endswith((".tmp", ".h5"))]
    assert compact(made).exists()


def test_many_steps_are_read_for_a_plot_at_once(tmp_path: Path) -> None:
    """Nothing is called for each report: a twentieth of the time in which their lines are parsed,
    as the benchmarks tell of a million."""
    store = Store.open(tmp_path / "store")
    made = scenes.experiment(store)
    trial = made.trial(1)
    scenes.run(trial, [], None)
    with RunLog.open(trial.records_path(1)) as log:
        for step in range(1, MANY + 1):
            log.append(scenes.metrics(step, loss=1 / step))
    trial.write_end(1, {"outcome": "completed"})
    compact(made)
    columns, spent = calls(lambda: metric_columns(trial, "training", ["loss"]))
    assert len(columns.steps) == len(columns.metrics["loss"]) == MANY
    assert spent < MANY / 20


def test_an_integer_that_is_too_large_for_a_float_is_infinite(store: Store) -> None:
    """In compacted columns and in means; the rows have it as it was reported."""
    made = scenes.experiment(store)
    trial = made.trial(1)
    reported = [scenes.metrics(1, loss=10**400), scenes.metrics(2, loss=0.5)]
    scenes.run(trial, reported, "completed")
    for _ in range(2):  # from the log, then compacted
        assert summary(trial_metrics(trial))["avg_metrics"]["loss"]["mean"] == math.inf
        compact(made)
    assert list(metric_columns(trial, "training", ["loss"]).metrics["loss"]) == [math.inf, 0.5]


def test_overviews_have_the_points_of_the_logs(store: Store) -> None:
    """Short curves whole, long ones thinned with their extremes; what is no number is left out."""
    made = scenes.experiment(store, trials=3)
    odd = [scenes.metrics(n, loss=10**400, word="x", acc={"top": n}) for n in (1, 2)]
    scenes.run(made.trial(1), [*odd, scenes.metrics(3, loss=math.nan)], "completed")
    long = [scenes.metrics(n, loss=0.0 if n != 3210 else 9.0) for n in range(1, 5001)]
    scenes.run(made.trial(2), long, "completed")
    scenes.run(made.trial(3), [], "completed")
    compact(made)
    trials = [made.trial(n) for n in (1, 2, 3)]
    found = overviews(trials)
    assert found.keys() == {1, 2, 3}
    for trial in trials:
        logged = {(s.group, s.metric): s for s in logged_series(trial)}
        assert logged.keys() == {(s.group, s.metric) for s in found[trial.id]}
        for one in found[trial.id]:
            whole = logged[one.group, one.metric]
            assert one.reported == len(whole.steps)
            if one.reported <= MOST:
                assert one.steps.tolist() == whole.steps.tolist()
                assert same(one.values.tolist(), whole.values.tolist())
    (thin,) = found[2]
    assert len(thin.steps) <= MOST
    assert (3210, 9.0) in zip(thin.steps, thin.values, strict=True)
    scenes.claim(made.trial(2), 2, continues=True)
    assert overviews(trials).keys() == {1, 3}
    made.metrics_path.write_bytes(b"garbage")
    assert overviews(trials) == {}


def test_views_of_trials_that_are_over_are_saved(store: Store) -> None:
    """They are those that the logs tell, with what became of checkpoints since."""
    made = scenes.experiment(store, trials=2)
    for number in (1, 2):
        records = [
            scenes.checkpoint(f"c{number}", 1),
            scenes.metrics(9, "validation", loss=math.nan),
        ]
        scenes.run(made.trial(number), [*records, {"t": "profile", "group": "cpu"}][: 1 + number],
                   "completed", usage={"gpu_seconds": {"5": 1.0}, "seconds": 2.0})  # fmt: skip
    compact(made)
    made.append(CheckpointDeleted(uuids=("c1",)))
    facts = fold_facts(made)
    saved = saved_views(made, facts)
    for number in (1, 2):
        folded = fold_trial(made.trial(number), facts.context(number))
        assert same(msgspec.to_builtins(saved[number].view), msgspec.to_builtins(folded))
    assert saved[1].view.checkpoints[0].state == "DELETED"
    assert saved[1].view.latest_checkpoint is None
    assert [saved[n].profiled for n in (1, 2)] == [False, True]
    (made.path / "trials.json").write_text("garbage")
    assert saved_views(made, facts) == {}


def test_a_view_of_what_was_unreadable_for_a_moment_is_not_saved(store: Store) -> None:
    """It is whole at the next look."""
    made = scenes.finished(store)
    log = made.trial(1).records_path(1)
    whole = log.read_bytes()
    log.write_bytes(bytes(len(whole) - 1) + b"\n")
    compact(made)
    log.write_bytes(whole)
    assert saved_views(made, fold_facts(made)) == {}


def test_a_script_may_go_on_with_a_trial_that_is_over(store: Store) -> None:
    """No fact tells, so what was kept of it does not count."""
    made = scenes.finished(store, managed=False)
    compact(made)
    number = made.trial(1).open_run({"resume": None, "hparams": {}, "continues": True}).run
    with RunLog.open(made.trial(1).records_path(number)) as log:
        log.append(scenes.checkpoint("later", 7))
    (row,) = fold_experiment(made).trials
    assert (row.run_count, row.latest_checkpoint and row.latest_checkpoint.steps) == (2, 7)
    assert saved_views(made, fold_facts(made)) == {}
