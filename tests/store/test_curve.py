"""However often a trial is interrupted, its curve is the one of an undisturbed run."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detslurm.store import (
    MetricRow,
    RunLog,
    TrialDir,
    fold_trial,
    metric_columns,
    trial_metrics,
)
from detslurm.store.columns import columns_of
from detslurm.store.curve import Span, clean_rows, last_valid_steps
from detslurm.store.run_series import read_runs
from tests.store import scenes

LENGTH, VALIDATE, SAVE = 30, 5, 7


def reported(first: int, last: int) -> list[dict[str, Any]]:
    """What deterministic code records on its way from step `first` to step `last`."""
    records = []
    for step in range(first + 1, last + 1):
        late: dict[str, Any] = {"late": 1} if step > 9 else {}
        records.append(scenes.metrics(step, loss=1 / step, **late))
        if step % VALIDATE == 0 or step == LENGTH:
            records.append(scenes.metrics(step, "validation", loss=2 / step))
        if step % SAVE == 0 or step == LENGTH:
            records.append(scenes.checkpoint(f"at-{step}", step))
    return records


def points(rows: list[MetricRow]) -> list[tuple[str, int, dict[str, Any]]]:
    """Rows without who reported them when."""
    return [(row.group, row.steps, row.metrics) for row in rows]


UNDISTURBED = [
    (record["group"], record["steps"], record["metrics"])
    for record in reported(0, LENGTH)
    if record["t"] == "metrics"
]
# How far a run comes, how many of its last records never reach the disk, and how many more a
# zombie of it writes after the next run began.
INTERRUPTIONS = st.lists(
    st.tuples(st.integers(0, LENGTH), st.integers(0, 3), st.integers(0, 4)), max_size=5
)


def interrupted(trial: TrialDir, interruptions: list[tuple[int, int, int]]) -> None:
    """Run the trial to its end through interruptions, as runner and code would."""
    zombies: list[tuple[int, list[dict[str, Any]]]] = []
    for length, unwritten, late in [*interruptions, (LENGTH, 0, 0)]:
        latest = fold_trial(trial).latest_checkpoint
        steps = latest.steps if latest else 0
        records = reported(steps, max(length, steps))
        kept = records[: len(records) - unwritten]
        resume = {"uuid": latest.uuid, "steps": steps} if latest else None
        number = scenes.run(trial, kept, resume=resume)
        for earlier, more in zombies:
            with RunLog.open(trial.records_path(earlier)) as log:
                for record in more:
                    log.append(record)
        zombies.append((number, reported(length, length + late)))
    trial.write_end(number, {"outcome": "completed"})


@settings(max_examples=40, deadline=None)
@given(INTERRUPTIONS)
def test_the_clean_curve_equals_the_undisturbed_one(
    interruptions: list[tuple[int, int, int]],
) -> None:
    """Crashes, lost tails and zombies leave no trace: no step twice, none missing."""
    with tempfile.TemporaryDirectory() as folder:
        trial = TrialDir(Path(folder) / "trials" / "01" / "1", 1, 1)
        interrupted(trial, interruptions)
        assert points(trial_metrics(trial)) == UNDISTURBED
        for group in ("training", "validation", "none"):
            rows = trial_metrics(trial, group)
            assert metric_columns(trial, group) == columns_of(rows)
        view = fold_trial(trial)
        assert view.state == "COMPLETED"
        assert view.steps == LENGTH
        assert view.restarts == 0
        assert view.latest_checkpoint is not None
        assert view.latest_checkpoint.uuid == f"at-{LENGTH}"


SPANS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20) | st.just(math.inf)), min_size=1, max_size=5
)


@given(SPANS)
def test_nothing_vanishes_before_a_newer_run_reports(spans: list[tuple[int, float]]) -> None:
    """A run that has not reported takes nothing away; one that has takes what it repeats."""
    runs = [Span(n, resumed, first) for n, (resumed, first) in enumerate(spans, 1)]
    limits = last_valid_steps(runs)
    assert limits[len(runs)] == math.inf
    for run in runs:
        later = [other for other in runs[run.run :] if other.first < math.inf]
        assert (limits[run.run] == math.inf) == (not later)
        for other in later:
            assert limits[run.run] <= other.resumed
            # What the later run reported from before its checkpoint on is not kept from before.
            assert limits[run.run] <= other.first


ROWS = st.lists(
    st.builds(
        MetricRow,
        st.sampled_from(["training", "validation"]),
        st.integers(0, 5),
        st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
    ),
    max_size=20,
)


@given(ROWS)
def test_keys_of_one_step_merge_and_the_later_wins(rows: list[MetricRow]) -> None:
    """Each group and step is one row that holds the last value of each key, in order of steps."""
    clean = clean_rows(rows, {1: math.inf})
    assert [row.steps for row in clean] == sorted(row.steps for row in clean)
    expected: dict[tuple[str, int], dict[str, int]] = {}
    for row in rows:
        expected.setdefault((row.group, row.steps), {}).update(row.metrics)
    assert {(row.group, row.steps): row.metrics for row in clean} == expected
    assert len(clean) == len(expected)


def test_a_revalidated_checkpoint_takes_nothing_but_its_own_keys() -> None:
    """A run that validates at the step it resumed from leaves that step's training metrics."""
    rows = [
        MetricRow("training", 10, {"loss": 1}, 1),
        MetricRow("validation", 10, {"loss": 1, "acc": 2}, 1),
        MetricRow("training", 11, {"loss": 1}, 1),
        MetricRow("validation", 10, {"loss": 3}, 2),
    ]
    limits = last_valid_steps([Span(1, 0, 10), Span(2, 10, 10)])
    assert points(clean_rows(rows, limits)) == [
        ("training", 10, {"loss": 1}),
        ("validation", 10, {"loss": 3, "acc": 2}),
    ]


def test_a_run_that_starts_over_takes_everything_it_repeats() -> None:
    """Code that ignores its checkpoint and reports from step 1 again replaces the old rows."""
    rows = [MetricRow("training", step, {"loss": 1}, 1) for step in range(1, 10)]
    rows.append(MetricRow("training", 1, {"loss": 2}, 2))
    limits = last_valid_steps([Span(1, 0, 1), Span(2, 9, 1)])
    assert points(clean_rows(rows, limits)) == [("training", 1, {"loss": 2})]


@pytest.mark.parametrize("resume", [None, {"uuid": "at-7", "steps": 7}])
def test_other_groups_do_not_say_where_a_run_began(
    tmp_path: Path, resume: dict[str, Any] | None
) -> None:
    """A report on the model at step 0, or tests counted in epochs, take nothing from the curve."""
    trial = TrialDir(tmp_path / "trials" / "01" / "1", 1, 1)
    for steps, begun_with in ((range(1, 8), None), (range(8, 10), resume)):
        rows = [scenes.metrics(0, "model", parameters=7), scenes.metrics(2, "test", f1=0.5)]
        scenes.run(trial, rows, resume=begun_with)
        assert [row.steps for row in trial_metrics(trial, "training")] == [*range(1, steps[0])]
        with RunLog.open(trial.records_path(len(trial.runs()))) as log:
            for step in steps:
                log.append(scenes.metrics(step, loss=1 / step))
                log.append(scenes.metrics(step, "validation", loss=1 / step))
    for group in ("training", "validation"):
        assert [row.steps for row in trial_metrics(trial, group)] == [*range(1, 10)]
        assert metric_columns(trial, group).steps == [*range(1, 10)]
        assert read_runs(trial, {}).limits[1] == 7
    assert points(trial_metrics(trial, "test")) == [("test", 2, {"f1": 0.5})]


def test_groups_of_the_users_own_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    """Whatever one of them tells of the model at step 0 in each run."""
    trial = TrialDir(tmp_path / "trials" / "01" / "1", 1, 1)
    for steps, resume in ((range(1, 8), None), (range(6, 8), {"uuid": "at-5", "steps": 5})):
        rows = [scenes.metrics(step, "train", loss=1 / step) for step in steps]
        scenes.run(trial, [scenes.metrics(0, "model", parameters=7), *rows], resume=resume)
    found = [(row.steps, row.run) for row in trial_metrics(trial, "train")]
    assert found == [*((n, 1) for n in range(1, 6)), (6, 2), (7, 2)]
    assert fold_trial(trial).steps == 7


def test_groups_of_the_users_own_decide_where_there_are_no_others(tmp_path: Path) -> None:
    """Code that reports nothing else, and begins again without a checkpoint."""
    trial = TrialDir(tmp_path / "trials" / "01" / "1", 1, 1)
    for last in (9, 4):
        scenes.run(trial, [scenes.metrics(step, "train", loss=last) for step in range(1, last)])
    assert [(row.steps, row.run) for row in trial_metrics(trial)] == [(n, 2) for n in (1, 2, 3)]
    assert trial_metrics(trial, "train") == trial_metrics(trial)
    assert metric_columns(trial, "train").steps == [1, 2, 3]
    assert fold_trial(trial).steps == 3


@pytest.mark.parametrize("resume", [None, {"uuid": "without-steps", "steps": 0}])
def test_code_with_files_of_its_own_keeps_its_curve(
    tmp_path: Path, resume: dict[str, Any] | None
) -> None:
    """Nobody but it knows where it goes on: what it does not report again stands."""
    trial = TrialDir(tmp_path / "trials" / "01" / "1", 1, 1)
    for steps, begun_with in ((range(1, 8), None), (range(6, 10), resume)):
        rows = [scenes.metrics(step, "validation", loss=10 - step) for step in steps]
        run = scenes.run(trial, rows, resume=begun_with)
    found = [(row.steps, row.run) for row in trial_metrics(trial)]
    assert found == [*((step, run - 1) for step in range(1, 6)), *((n, run) for n in range(6, 10))]
    columns = metric_columns(trial, "validation")
    assert columns == columns_of(trial_metrics(trial, "validation"))
    assert read_runs(trial, {}).limits == {run - 1: 5, run: math.inf}
