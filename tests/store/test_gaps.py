"""Logs of numbered facts in which files are missing: a gap is no end, and is never filled."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.store import Store, fs
from detslurm.store.facts import FactLog
from detslurm.store.frame import frame
from detslurm.store.ledger import LedgerState
from detslurm.store.records import Created
from tests.store.clients import on
from tests.store.faults import refusing


def written(folder: Path, count: int, lost: set[int]) -> FactLog:
    """A log with so many facts, without those that were lost."""
    log = FactLog(folder)
    folder.mkdir()
    for number in {*range(1, count + 1)} - lost:
        log.name(number).write_bytes(frame({"v": 1, "type": "x"}))
    return log


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2, 3}, {2, 5, 6}])
def test_lost_facts_are_named_and_their_numbers_stay_free(tmp_path: Path, lost: set[int]) -> None:
    """Readers get every other fact, and appends come after the last one."""
    log = written(tmp_path / "log", 8, lost)
    facts = list(log.facts())
    assert [fact["n"] for fact in facts] == list(range(1, 9))
    assert {fact["n"] for fact in facts if fact.get("missing")} == lost == {*log.gaps()}
    assert all(str(log.name(f["n"])) == f["path"] for f in facts if f.get("missing"))
    assert not log.put_next(min(lost), {"type": "x"})
    assert log.append({"type": "x"}) == 9
    assert log.append({"type": "x"}, min(lost) - 1) == 10
    assert not any(log.name(number).exists() for number in lost)


@pytest.mark.parametrize("lost", [{2}, {1500}, {1500, 1501}, {1999}])
def test_a_long_log_is_listed_where_it_matters(tmp_path: Path, lost: set[int]) -> None:
    """A first reading and a thorough one find every gap; the next look finds a single one."""
    log = written(tmp_path / "log", 2000, lost)
    assert {fact["n"] for fact in log.facts() if fact.get("missing")} == lost
    behind = min(lost) - 1
    assert {f["n"] for f in log.facts(behind, thorough=True) if f.get("missing")} == lost
    if len(lost) == 1:
        assert {f["n"] for f in log.facts(behind) if f.get("missing")} == lost
        assert log.append({"type": "x"}, behind) == 2001


def test_what_a_node_remembers_is_no_gap(store: Store) -> None:
    """A node that has looked for a fact too early, and lists late, reads it later all the same."""
    log = store.ledger.log
    fs.ensure_directory(log.path)
    assert list(log.facts()) == [] and not fs.exists(log.name(1))
    with on("elsewhere"):
        for _ in range(3):
            log.append({"type": "touched", "id": 1})
    assert [fact.get("missing") for fact in log.facts()] == [None] * 3
    assert log.append({"type": "touched", "id": 1}) == 4


def test_an_old_listing_is_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a listing lacks are found by name; a gap that it hides is found the next time."""
    log = written(tmp_path / "log", 4, set())
    old = fs.names_in(log.path)[:2]
    with monkeypatch.context() as stale:
        stale.setattr(fs, "names_in", lambda path: old)
        assert [fact.get("missing") for fact in log.facts()] == [None] * 4
        assert log.append({"type": "x"}) == 5
    log.name(3).unlink()
    assert [fact["n"] for fact in log.facts() if fact.get("missing")] == [3]


@pytest.mark.parametrize("name", ["999999.json", "999999999999.json", "000000000000000001.json"])
def test_a_file_out_of_reach_is_no_fact(tmp_path: Path, name: str) -> None:
    """No reader walks a million numbers for a file that anyone may have put there."""
    log = written(tmp_path / "log", 3, set())
    (log.path / name).write_bytes(b"")
    assert [fact.get("missing") for fact in log.facts(thorough=True)] == [None] * 3
    assert log.gaps() == [] and log.last_listed() == 3
    assert log.append({"type": "x"}) == 4


def test_an_experiment_that_has_just_begun_is_no_sign_of_a_lost_tail(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trial ids are given between two looks of another submission: the ledger is read again."""
    neighbour, own = store.new_experiment(), store.new_experiment()
    read = Store.ledger_state

    def late(self: Store, *, thorough: bool = False) -> LedgerState:
        state = read(self, thorough=thorough)
        monkeypatch.undo()
        neighbour.create(Created(first_trial=store.reserve_trials(neighbour.id, 3), trials=3))
        return state

    monkeypatch.setattr(Store, "ledger_state", late)
    assert store.reserve_trials(own.id, 2) == 4


def test_a_private_experiment_stops_no_other(store: Store) -> None:
    """In a shared store the experiment before may be one that this user may not read."""
    private, own = store.new_experiment(), store.new_experiment()
    private.create(Created(first_trial=store.reserve_trials(private.id, 3), trials=3))
    with refusing(private.log.name(1)):
        assert store.reserve_trials(own.id, 2) == 4


def test_no_cache_keeps_a_gap(store: Store) -> None:
    """A file that comes back, as by a restore that goes on, counts at once."""
    for experiment in range(1, 60):
        store.reserve_trials(experiment, 2)
    store.own("index.json").unlink()
    lost = store.ledger.log.name(5)
    whole = lost.read_bytes()
    lost.unlink()
    assert store.ledger_state().missing == str(lost)
    lost.write_bytes(whole)
    state = LedgerState()
    store.ledger.catch_up(state)
    assert store.ledger_state().problems == [] == state.problems
    assert store.find_trial(9).experiment_id == 5
