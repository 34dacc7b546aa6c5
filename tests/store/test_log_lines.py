"""What a line says is the same whether its records stand in one line or in many."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import pytest

from detslurm.core._metrics import plain
from detslurm.exec.idle_guard import RecordsNews
from detslurm.store import MetricRow, RunLog, Store, fold_trial, fs
from detslurm.store.errors import CorruptRecord
from detslurm.store.frame import block, encode_json, frame
from detslurm.store.log_lines import line_facts, line_rows
from detslurm.store.profiling import trial_profile
from detslurm.store.reading import trial_metrics
from detslurm.store.run_series import SeriesCache
from detslurm.store.series import logged_series
from tests.store import scenes
from tests.store.listing import rows_of

MIXED: list[dict[str, Any]] = [
    scenes.metrics(1, loss=1),
    {"t": "progress", "value": 0.5},
    scenes.metrics(2, loss=math.nan, deep={"$odd": math.inf}),
    scenes.metrics(2, group="validation", loss=0.25),
    {"t": "status", "text": "half way", "group": "training", "steps": 3, "metrics": {}},
    {"t": "checkpoint_started", "uuid": "one", "steps": 2},
    {
        "t": "metrics",
        "group": "training",
        "steps": 4,
        "metrics": {"a": 1},
        "time": 5,
        "batch": [{}],
    },
]
MALFORMED = {"t": "metrics", "group": "training", "steps": "many", "metrics": {}}


def _lines(records: Sequence[dict[str, Any]]) -> list[bytes]:
    return [frame(record)[:-1] for record in records]


def _block(records: Sequence[dict[str, Any]]) -> bytes:
    return block([encode_json(record) for record in records])[:-1]


@pytest.mark.parametrize("records", [MIXED, MIXED[:2], MIXED[:1] * 3, [*MIXED, MALFORMED]])
def test_a_block_says_what_its_records_say(records: list[dict[str, Any]]) -> None:
    """To folds and to curves, with every kind of record among them and one that is broken."""
    alone, together = list(map(line_facts, _lines(records))), line_facts(_block(records))
    assert [s for one in alone for s in one.training] == list(together.training)
    assert [s for one in alone for s in one.other] == list(together.other)
    assert repr([r for one in alone for r in one.records]) == repr(list(together.records))
    assert any(one.malformed for one in alone) == together.malformed
    assert together.time == alone[-1].time
    rows = [row for line in _lines(records) for row in line_rows(line)]
    assert repr(rows) == repr(line_rows(_block(records)))


def test_rows_are_metrics_and_nothing_else() -> None:
    """Values come back as they were reported; other records are none, whatever they hold."""
    rows = line_rows(_block(MIXED))
    assert [(row.group, row.steps) for row in rows] == [
        ("training", 1), ("training", 2), ("validation", 2), ("training", 4),
    ]  # fmt: skip
    assert repr(rows[1].metrics) == "{'loss': nan, 'deep': {'$odd': inf}}"
    assert rows[3] == MetricRow("training", 4, {"a": 1}, time=5.0, batch=[{}])
    tagless = {"group": "training", "steps": 1, "metrics": {}}
    assert line_rows(_block([tagless, tagless])) == line_rows(frame(tagless)[:-1]) == []


GROUPS = ["training", "validation", "inference", 'a "quoted", odd one', "", "größer"]


@pytest.mark.parametrize("names", [*([name] * 3 for name in GROUPS), GROUPS])
@pytest.mark.parametrize("group", [None, *GROUPS])
def test_rows_of_a_group(names: list[str], group: str | None) -> None:
    """Whatever its name, alone in a block or with others, with other records among them or none."""
    reported = [
        {"t": "metrics", "group": name, "steps": step, "metrics": {"loss": 0.5}}
        for step, name in enumerate(names)
    ]
    wanted = [
        MetricRow(name, step, {"loss": 0.5})
        for step, name in enumerate(names)
        if group in (None, name)
    ]
    progress = MIXED[1]
    assert line_rows(_block(reported), 1, group) == wanted
    assert line_rows(_block([progress, *reported]), 1, group) == wanted


def test_a_damaged_block_says_nothing() -> None:
    """One wrong byte is known by the checksum."""
    line = _block(MIXED).replace(b"0.25", b"0.26")
    for read in (line_facts, line_rows):
        with pytest.raises(CorruptRecord):
            read(line)


def test_logs_of_either_form_give_one_curve(store: Store) -> None:
    """What an earlier version wrote line by line, and a log that has both."""
    records = [scenes.metrics(step, loss=1 / (1 + step)) for step in range(50)]
    records[20:20] = MIXED
    trial = scenes.trial(store)
    assert scenes.claim(trial, 1)
    path = trial.records_path(1)
    found = []
    for data in (
        b"".join(map(frame, records)),
        _block(records) + b"\n",
        b"".join([*map(frame, records[:9]), _block(records[9:]), b"\n"]),
    ):
        path.write_bytes(data)
        fs.refresh(path.parent)
        found.append((repr(trial_metrics(trial)), repr(fold_trial(trial))))
    assert found[0] == found[1] == found[2]
    assert len(trial_metrics(trial, "training")) == 50


def test_a_second_look_at_curves_reads_only_what_is_new(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all bytes each is asked for once, and the curve is that of a first look."""
    trial = scenes.trial(store)
    assert scenes.claim(trial, 1)
    starts, read_pieces = [], fs.read_pieces

    def watched(path: fs.AnyPath, *, start: int = 0) -> Iterator[bytes]:
        if str(path) == str(trial.records_path(1)):
            starts.append(start)
        return read_pieces(path, start=start)

    cache: SeriesCache = {}
    sizes = [0]
    with RunLog.open(trial.records_path(1)) as log:
        for step in range(3000):
            log.append(scenes.metrics(step, loss=step))
            if step % 1000 == 999:
                log.flush()
                monkeypatch.setattr(fs, "read_pieces", watched)
                (found,) = logged_series(trial, cache)
                monkeypatch.undo()
                assert found.steps.tolist() == list(range(step + 1))
                sizes.append(trial.records_path(1).stat().st_size)
    assert starts == sizes[:-1]
    (afresh,) = logged_series(trial)
    assert (afresh.values == found.values).all()


def test_profiles_are_found_among_other_records(store: Store) -> None:
    """They stand in the same lines as what was reported meanwhile."""
    trial = scenes.trial(store)
    assert scenes.claim(trial, 1)
    sample = {"t": "profile", "group": "cpu", "metrics": {"here": {"busy": 0.5}}, "time": 3}
    path = trial.records_path(1)
    path.write_bytes(_block([*MIXED, sample, *MIXED]) + b"\n")
    fs.refresh(path.parent)
    assert [row.metrics for row in trial_profile(trial)] == [{"busy": 0.5}]
    news = RecordsNews(str(path))
    assert news()
    with path.open("ab") as log:
        log.write(_block([sample, sample]) + b"\n")
    fs.refresh(path.parent)
    assert not news()


@pytest.mark.parametrize(
    "records",
    [
        [scenes.metrics(step, loss=float(step), acc=0.5) for step in range(9)],
        [scenes.metrics(step, loss=step) for step in range(9)],
        [scenes.metrics(1, loss=0.5), scenes.metrics(2, acc=0.5), scenes.metrics(3, loss=0.25)],
        [scenes.metrics(step, loss=[math.nan, 1.0, math.inf][step % 3]) for step in range(9)],
        [scenes.metrics(step, deep={"a": 1.0, "b": "text"}) for step in range(9)],
        [scenes.metrics(step) for step in range(9)],
        [scenes.metrics(step, loss=1.0) for step in (1, 2, 1 << 63, 4, 3, 2)],
        MIXED,
    ],
)  # fmt: skip
def test_curves_are_the_same_from_blocks(store: Store, records: list[dict[str, Any]]) -> None:
    """Where all rows of a line are alike they are taken together, which changes nothing."""
    trial = scenes.trial(store)
    assert scenes.claim(trial, 1)
    path, found = trial.records_path(1), []
    for data in (b"".join(map(frame, records)), _block(records) + b"\n"):
        path.write_bytes(data)
        fs.refresh(path.parent)
        curves = logged_series(trial)
        found.append(
            [(c.group, c.metric, repr([*c.steps, *c.values, *c.times]), c.reported) for c in curves]
        )
    assert found[0] == found[1]


def test_a_step_beyond_all_counts_takes_no_other_record_with_it(store: Store) -> None:
    """It is left out, as where it stands in a line of its own."""
    trial = scenes.trial(store)
    assert scenes.claim(trial, 1)
    records = [scenes.metrics(1 << 63, loss=1.0), scenes.checkpoint("kept", 1)]
    trial.records_path(1).write_bytes(_block(records) + b"\n")
    assert [one.uuid for one in fold_trial(trial).checkpoints] == ["kept"]


def test_a_line_that_is_nested_too_deeply_ends_no_listing(store: Store) -> None:
    """In a shared store it would be everybody's."""
    made = scenes.finished(store)
    raw = b'{"t":"x","deep":' + b"[" * 3000 + b"]" * 3000 + b"}"
    with made.trial(1).records_path(1).open("ab") as log:
        log.write(b"%08x %b\n" % (crc32(raw), raw))
    assert [row.id for row in rows_of(store)] == [made.id]


def test_a_commit_has_a_line_of_its_own(store: Store) -> None:
    """A runner from before an upgrade reads no blocks, and would begin from scratch."""
    trial = scenes.trial(store)
    assert scenes.claim(trial, 1)
    with RunLog.open(trial.records_path(1)) as log:
        log.append(scenes.metrics(1, loss=1.0))
        log.append(scenes.metrics(2, loss=0.5))
        log.commit(scenes.checkpoint("a", 2))
        log.append(scenes.metrics(3, loss=0.5))
    first, second, third = trial.records_path(1).read_bytes().splitlines()
    assert (first[9:10], second[9:10]) == (b"[", b"{") and b'"a"' in second and third


def test_a_line_that_is_nested_too_deeply_is_corrupt() -> None:
    """Not an end of the reader, whose other lines are sound."""
    deep = b'{"t":"metrics","group":"training","steps":1,"metrics":{"a":%b%b}}' % (
        b"[" * 5000,
        b"]" * 5000,
    )
    with pytest.raises(CorruptRecord, match="deeply"):
        line_rows(block([deep])[:-1])


def test_values_that_are_nested_too_deeply_are_refused() -> None:
    """Where they are reported, because no reader could walk through them."""
    value: dict[str, Any] = {}
    for _ in range(5000):
        value = {"a": value}
    with pytest.raises(ValueError, match="more than 100 deep"):
        plain(value)
