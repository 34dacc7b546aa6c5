"""The index of many experiments: written in parts, each of which may vanish."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from unittest import mock

import pytest

from detslurm.store import ExperimentRow, NotFound, Store, fold_experiment, fs, index, trial_ids
from tests.store import scenes
from tests.store.listing import rows_of

MANY = 23


@pytest.fixture
def many(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in which small numbers stand for large ones, listed after each experiment's end."""
    monkeypatch.setattr(index, "PART", 6)
    monkeypatch.setattr(index, "FOLD_AFTER", 4)
    monkeypatch.setattr(trial_ids, "EACH", 5)
    for number in range(MANY):
        scenes.finished(store, name=str(number))
        rows_of(store)
    return store


def _parts(store: Store) -> list[Path]:
    return sorted((store.path / "index.parts").glob("0*"))


def _folded(store: Store) -> int:
    """How many experiments a listing has to fold."""
    return sum(isinstance(one, int) for one in store.catalog().newest_first())


def _names(store: Store) -> list[str]:
    return [row.name for row in rows_of(store)]


def test_an_end_writes_the_head_and_at_times_a_part(many: Store) -> None:
    """Never all rows: what is written does not grow with the number of experiments."""
    written: list[tuple[str, int]] = []
    replace_file = fs.replace_file

    def watched(path: Path, data: bytes, *, sync: bool = True) -> None:
        written.append((path.name, data.count(b'"owner"')))
        replace_file(path, data, sync=sync)

    for number in range(MANY, MANY + 8):
        scenes.finished(many, name=str(number))
        with mock.patch.object(fs, "replace_file", watched):
            assert _names(many) == list(map(str, range(number + 1)))
    names = [name for name, _ in written if name.startswith("index") or name[0].isdigit()]
    assert names.count("index.json") == 8
    assert 2 <= len(names) - 8 <= 4
    assert _folded(many) == 0


def test_parts_hold_what_a_first_listing_finds(many: Store) -> None:
    """The same rows, none of them folded again."""
    rows = rows_of(many)
    assert _folded(many) == 0
    (many.path / "index.json").unlink()
    assert _folded(many) == MANY
    assert rows_of(many) == rows


@pytest.mark.parametrize("damage", [None, b"", b"garbage", b'00000000 {"rows":[]}\n'])
def test_a_part_that_is_lost_is_made_again(many: Store, damage: bytes | None) -> None:
    """Its experiments are folded once."""
    rows = rows_of(many)
    for part in _parts(many):
        if part.name.startswith("000001-"):
            part.unlink() if damage is None else part.write_bytes(damage)
    fs.refresh(many.path / "index.parts")
    assert 0 < _folded(many) <= 6
    assert rows_of(many) == rows
    assert _folded(many) == 0
    assert rows_of(many) == rows


def test_what_is_settled_while_others_are_shown_is_shown_too(many: Store) -> None:
    """Whoever takes the newest may read all the rest at once, and fold them into parts."""
    (many.path / "index.json").unlink()
    catalog = many.catalog()
    walk = catalog.newest_first()
    shown, rest = next(walk), catalog.unfinished
    catalog.settle([fold_experiment(many.experiment(number)).row() for number in rest])
    assert len({shown, *(one if isinstance(one, int) else one.id for one in walk)}) == MANY


def test_a_change_replaces_the_row_of_a_part(many: Store) -> None:
    """At once, and for readers that come later, before and after the parts are written anew."""
    many.experiment(3).append({"type": "set", "field": "name", "value": "renamed"})
    many.experiment(4).append({"type": "intent", "intent": "delete"})
    expected = [*"01", "renamed", *map(str, range(4, MANY))]
    for number in range(MANY, MANY + 9):
        assert _names(many) == expected
        assert _names(Store(many.path)) == expected
        scenes.finished(many, name=str(number))
        expected.append(str(number))


def test_a_row_that_counts_no_more_stays_away(many: Store) -> None:
    """While nobody knows a new one, the old row in its part is not shown."""
    many.experiment(3).append({"type": "set", "field": "name", "value": "renamed"})
    catalog = many.catalog()
    assert 3 in catalog.unfinished
    catalog.save()
    assert many.catalog().unfinished == [3]


def test_the_part_before_stays_for_those_who_read_it(many: Store) -> None:
    """At most two for each place."""
    places = [part.name[:6] for part in _parts(many)]
    assert places
    assert max(map(places.count, places)) <= 2


@pytest.mark.parametrize("damage", [None, b"garbage", b'00000000 {"blocks":[]}\n'])
def test_trials_are_found_whatever_becomes_of_the_index(many: Store, damage: bytes | None) -> None:
    """Most are looked up in files of their own, which may vanish, alone or with parts."""

    def found() -> list[int]:
        return [Store(many.path).find_trial(trial).experiment_id for trial in range(1, MANY + 1)]

    rows, expected = rows_of(many), list(range(1, MANY + 1))
    files = sorted((many.path / "index.parts").glob("trials-*"))
    assert len(files) == MANY // 5
    with mock.patch.object(os, "open", side_effect=os.open) as opened:
        many.find_trial(7)
    assert sum("index" in str(call.args[0]) for call in opened.call_args_list) == 2
    for file in files[1:3]:
        file.unlink() if damage is None else file.write_bytes(damage)
    fs.refresh(many.path / "index.parts")
    assert found() == expected
    assert rows_of(many) == rows
    _parts(many)[-1].unlink()
    fs.refresh(many.path / "index.parts")
    assert rows_of(many) == rows
    assert found() == expected
    with pytest.raises(NotFound):
        many.find_trial(MANY + 1)


def test_a_page_reads_the_part_that_it_needs(many: Store) -> None:
    """Not those of older experiments; and an open one in an old part is found there."""
    many.experiment(2).append({"type": "set", "field": "name", "value": "renamed"})
    with mock.patch.object(os, "open", side_effect=os.open) as opened:
        newest = [*islice(many.catalog().newest_first(), 6)]
    assert [one.id for one in newest if isinstance(one, ExperimentRow)] == list(range(23, 17, -1))
    assert sum("index.parts" in str(call.args[0]) for call in opened.call_args_list) <= 2
    every = [one if isinstance(one, int) else one.id for one in many.catalog().newest_first()]
    assert every == list(range(MANY, 0, -1))
    assert many.catalog().unfinished == [2]


def test_a_listing_that_dies_removes_nothing_of_another_one(many: Store) -> None:
    """Two fold at the same time; the second ends before it has written its head."""
    for _ in range(4):
        scenes.finished(many)
    first, second = many.catalog(), many.catalog()
    rows = [fold_experiment(many.experiment(number)).row() for number in first.unfinished]
    first.settle(rows)
    assert _folded(many) == 0
    replace_file = fs.replace_file

    def dies(path: Path, data: bytes, *, sync: bool = True) -> None:
        if path.name == "index.json":
            raise KeyboardInterrupt
        replace_file(path, data, sync=sync)

    with mock.patch.object(fs, "replace_file", dies), pytest.raises(KeyboardInterrupt):
        second.settle(rows)
    assert _folded(many) == 0
