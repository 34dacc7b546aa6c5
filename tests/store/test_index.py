"""Listing is cheap, never wrong, and every cache may vanish."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from detslurm.store import ExperimentDir, Store, TrialDir, fold_experiment, fs
from detslurm.store.errors import explained
from detslurm.store.index import STALE_AFTER
from tests.store import scenes
from tests.store.faults import failing, race
from tests.store.listing import rows_of

MANY = 1000


def _names(store: Store) -> list[str]:
    return [row.name for row in rows_of(store)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a thousand finished experiments that were listed once."""
    store = Store.open(tmp_path_factory.mktemp("many") / "store")
    with mock.patch.object(os, "fsync"):  # this is about reading
        for number in range(MANY):
            scenes.finished(store, name=f"experiment {number}")
        rows_of(store)
    yield store
    shutil.rmtree(store.path)


LISTING = """
import re, sys
from detslurm.store import Store
from tests.counting import calls
from tests.store.listing import rows_of
store = Store.open(sys.argv[1])
rows, spent = calls(lambda: rows_of(store))
with open("/proc/self/status") as file:
    peak = int(re.search("VmHWM:\\s+(\\d+)", file.read())[1]) / 1024
print(len(rows), spent, peak)
assert not {"numpy", "h5py", "torch", "yaml"} & set(sys.modules)
"""


def test_a_thousand_finished_experiments_list_within_budget(many: Store) -> None:
    """At most 20 calls of functions each, 100 MB, and neither numpy nor h5py."""
    argv = [sys.executable, "-c", LISTING, str(many.path)]
    count, spent, peak = subprocess.check_output(argv, text=True).split()
    assert int(count) == MANY
    assert int(spent) < 20 * MANY
    assert float(peak) < 100


def _path_calls(many: Store, code: str, trace: Path) -> list[str]:
    argv = ["strace", "-f", "-qq", "-e", "trace=%file", "-o", str(trace), sys.executable, "-c"]
    subprocess.run([*argv, code, str(many.path)], check=True, capture_output=True)
    return [line for line in trace.read_text().splitlines() if str(many.path) in line]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_listing_and_looking_up_take_a_handful_of_path_calls(many: Store, tmp_path: Path) -> None:
    """The budget is 200 path calls; what it takes does not grow with what is finished."""
    head = "import sys; from detslurm.store import Store;"
    head += "from tests.store.listing import rows_of; store = Store.open(sys.argv[1]);"
    # Lines of strace also hold the program's arguments: hence one more than is asked for.
    assert len(_path_calls(many, head + "rows_of(store)", tmp_path / "list")) <= 10
    look = head + f"assert store.find_trial({MANY // 2}).experiment_id == {MANY // 2}"
    assert len(_path_calls(many, look, tmp_path / "find")) <= 10 + STALE_AFTER


def test_a_late_intent_reaches_the_listing(store: Store) -> None:
    """Archiving, renaming and deleting show although the experiment was indexed as finished."""
    first, second = scenes.finished(store, name="a"), scenes.finished(store, name="b")
    assert _names(store) == ["a", "b"]
    first.append({"type": "set", "field": "name", "value": "renamed"})
    second.append({"type": "intent", "intent": "archive"})
    rows = rows_of(Store.open(store.path))
    assert [(row.name, row.archived) for row in rows] == [("renamed", False), ("b", True)]
    second.append({"type": "intent", "intent": "delete"})
    assert _names(store) == ["renamed"]
    assert _names(Store.open(store.path)) == ["renamed"]


def test_every_cache_may_be_lost_or_damaged(store: Store) -> None:
    """Without index and summaries, or with garbage in them, the listing is the same."""
    for number in range(3):
        scenes.finished(store, name=str(number), description="d" * number)
    rows = rows_of(store)
    caches = [store.path / "index.json", *store.path.glob("experiments/*/summary.json")]
    assert len(caches) == 4
    for damage in (
        None,
        b"",
        b"garbage\n",
        b'00000000 {"rows": 7}\n\n',
        caches[0].read_bytes()[:-9],
    ):
        for cache in caches:
            cache.unlink() if damage is None else cache.write_bytes(damage)
        assert rows_of(store) == rows
        assert rows_of(store) == rows


def test_an_index_that_cannot_be_written_costs_time_only(store: Store) -> None:
    """On a full disk, or in somebody else's store, listing still works."""
    scenes.finished(store, name="a")
    with failing("open", 28, skip=10**6):
        assert _names(store) == ["a"]
    (store.path / "index.json").unlink()
    with mock.patch.object(fs, "write_new", side_effect=explained(OSError(28, "full"), "x")):
        assert _names(store) == ["a"]
    assert not (store.path / "index.json").exists()


def test_racing_listers_agree(store: Store) -> None:
    """While experiments finish, every listing shows each of them once, in order."""
    made = [scenes.experiment(store, name=str(number)) for number in range(6)]

    def work(number: int) -> bool:
        if number == 0:
            for experiment in made:
                scenes.run(experiment.trial(experiment.id), [], "completed")
            return True
        return all(_names(Store.open(store.path)) == list("012345") for _ in range(10))

    assert race(4, work) == [True] * 4
    assert {row.state for row in rows_of(store)} == {"COMPLETED"}


def test_unfinished_experiments_are_read_anew(store: Store) -> None:
    """What still moves is never served from a cache."""
    made = scenes.experiment(store, trials=2)
    assert [row.state for row in rows_of(store)] == ["ACTIVE"]
    scenes.run(made.trial(1), [{"t": "progress", "value": 0.5}])
    assert [row.progress for row in rows_of(store)] == [0.25]
    made.append({"type": "intent", "intent": "pause"})
    assert [row.state for row in rows_of(store)] == ["PAUSED"]


def test_an_experiment_is_invisible_until_it_is_created(store: Store) -> None:
    """A submission that broke off before the `created` fact leaves nothing to see."""
    half = store.new_experiment()
    store.reserve_trials(half.id, 10)
    assert rows_of(store) == []
    whole = scenes.finished(store)
    assert [row.id for row in rows_of(store)] == [whole.id] == [2]


def _crowd(store: Store, trials: int, done: int, **created: Any) -> ExperimentDir:
    made = scenes.experiment(store, trials=trials, **created)
    with mock.patch.object(os, "fsync"):
        for number in range(1, done + 1):
            scenes.run(made.trial(number), [scenes.checkpoint(f"c{number}", 3)], "completed")
    return made


def test_trials_that_are_over_are_not_read_again(store: Store) -> None:
    """The summary of a large experiment keeps their rows, and the view stays the same."""
    made = _crowd(store, trials=300, done=60)
    before = fold_experiment(made)
    assert before.trial_states == {"COMPLETED": 60, "QUEUED": 240}
    shutil.rmtree(made.path / "trials" / "01")  # trials 1, 101 and 201: nobody looks there
    again = fold_experiment(made)
    assert again.trials == before.trials
    assert again.row() == before.row()


def test_a_killed_crowd_is_over_when_each_of_it_was_looked_for(store: Store) -> None:
    """This node's listing is older than a run. Had it counted, that would be CANCELED for good."""
    made = _crowd(store, trials=300, done=0)
    with mock.patch.object(fs, "names_in", functools.cache(fs.names_in)):
        assert [row.trial_states for row in rows_of(store)] == [{"QUEUED": 300}]
        scenes.run(made.trial(7), [])
        made.append({"type": "intent", "intent": "kill"})
        (row,) = rows_of(store)
        assert row.trial_states == {"CANCELED": 299, "RUNNING": 1}
        assert row.state == "STOPPING_KILLED"
        made.trial(7).write_end(1, {"outcome": "canceled"})
        assert [row.state for row in rows_of(store)] == ["CANCELED"]


def test_a_killed_search_is_looked_through_once(store: Store) -> None:
    """Of ids that it kept ready there are no rows that a summary could keep."""
    made = _crowd(store, trials=300, done=1, search=True)
    made.append({"type": "intent", "intent": "kill"})
    before = fold_experiment(made)
    assert (before.state, before.trial_states) == ("CANCELED", {"COMPLETED": 1})
    with mock.patch.object(TrialDir, "runs") as runs:
        assert fold_experiment(made).row() == before.row()
    runs.assert_not_called()


def test_what_is_decided_later_overrules_the_summary(store: Store) -> None:
    """Deleted checkpoints and trials that are submitted again are read anew."""
    made = _crowd(store, trials=60, done=60)
    assert fold_experiment(made).state == "COMPLETED"
    made.append({"type": "checkpoint_deleted", "uuids": ["c7"]})
    rows = fold_experiment(made).trials
    assert rows[6].latest_checkpoint is None
    assert rows[7].latest_checkpoint is not None
    scenes.claim(made.trial(3), 2, continues=True)
    made.append({"type": "submitted", "jobs": [{"job_id": "9", "first_index": 2}]})
    assert [row.state for row in rows_of(store)] == ["ACTIVE"]
    assert fold_experiment(made).trials[2].state == "RUNNING"


def test_a_long_ledger_is_folded_once(store: Store) -> None:
    """Whoever meets a long tail writes the index, so that the next one reads a short tail."""
    made = scenes.finished(store)
    for _ in range(STALE_AFTER + 1):
        store.touch(made.id)
    store.reserve_trials(made.id, 1)
    with mock.patch.object(os, "open", side_effect=os.open) as opened:
        store.ledger_state()
    assert opened.call_count < 10
