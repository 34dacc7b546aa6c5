"""kill -9 at every system call of every commit: the store stays readable and work goes on."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from detslurm.store import (
    ExperimentDir,
    RunLog,
    Store,
    StoreError,
    compact,
    fold_experiment,
    fold_trial,
    trial_metrics,
)
from detslurm.store.facts import read_record
from detslurm.store.run_log import read_records
from tests.store import scenes
from tests.store.faults import deaths, failing_at, killed_at
from tests.store.listing import rows_of

Work = Callable[[Store], object]
Look = Callable[[Store], object]


def _only(store: Store) -> ExperimentDir:
    return store.experiment(1)


def _trial(store: Store) -> Any:
    return store.find_trial(1)


def _commit_checkpoint(store: Store) -> None:
    with RunLog.open(_trial(store).records_path(1)) as log:
        log.append(scenes.metrics(20, loss=0.2))
        log.commit(scenes.checkpoint("new", 20))


def _freeze(store: Store) -> None:
    if not _only(store).code.exists():
        with _only(store).freeze_code() as stage:
            (Path(stage) / "model").mkdir()
            (Path(stage) / "model" / "train.py").write_text("print('whole')")


def _code(store: Store) -> object:
    code = _only(store).code
    return code.exists() and (code / "model" / "train.py").read_text()


def _end_and_list(store: Store) -> None:
    _trial(store).write_end(1, {"outcome": "completed"})
    rows_of(store)


def _compact(store: Store) -> None:
    _trial(store).write_end(1, {"outcome": "completed"})
    compact(_only(store))


COMMITS: dict[str, tuple[Work, Look]] = {
    "a fact": (
        lambda store: _only(store).append({"type": "note", "text": "x"}),
        lambda store: sum(fact["type"] == "note" for fact in _only(store).facts()),
    ),
    "an intent": (
        lambda store: _only(store).append({"type": "intent", "intent": "archive"}),
        lambda store: fold_experiment(_only(store)).archived,
    ),
    "a block of trials": (
        lambda store: store.reserve_trials(1, 5),
        lambda store: store.ledger_state().next_trial,
    ),
    "a new experiment": (
        scenes.experiment,
        lambda store: len(rows_of(store)),
    ),
    "the claim of a run": (
        lambda store: _trial(store).open_run({"job": {"job_id": "2"}}),
        lambda store: len(_trial(store).runs()),
    ),
    "the end of a run": (
        lambda store: _trial(store).write_end(1, {"outcome": "completed"}),
        lambda store: fold_trial(_trial(store)).state,
    ),
    "a checkpoint": (
        _commit_checkpoint,
        lambda store: [c.uuid for c in fold_trial(_trial(store)).checkpoints],
    ),
    "frozen code": (_freeze, _code),
    "compacted metrics": (
        _compact,
        lambda store: _only(store).metrics_path.exists() and len(trial_metrics(_trial(store))),
    ),
    "the index and a summary": (
        _end_and_list,
        lambda store: [row.state for row in rows_of(store)],
    ),
}


def _open_and(work: Work, root: Path) -> None:
    work(Store.open(root))


def _scene(place: Path) -> Store:
    store = Store.open(place)
    made = scenes.experiment(store)
    scenes.run(made.trial(1), [scenes.metrics(10, loss=0.5), scenes.checkpoint("old", 10)])
    return store


def _assert_sound(root: Path) -> None:
    """Every visible file is whole, and every view can be made."""
    store = Store.open(root)
    for path in root.rglob("*.json"):
        if not path.name.startswith(".") and path.parent.name != "jobs":
            record = read_record(path, expected=True) if path.name != "index.json" else {}
            assert record is not None and record.get("type") != "corrupt", path
    for row in rows_of(store):
        view = fold_experiment(store.experiment(row.id))
        # Only the log in hand may have been cut short, and its reader says so.
        assert all(problem.path.endswith(".jsonl") for problem in view.problems)
    assert scenes.metrics(10, loss=0.5) in read_records(_trial(store).records_path(1)).records


ERRORS = [
    (name, code)
    for name in COMMITS
    for code in (errno.EIO, errno.EDQUOT, errno.ESTALE)
    if code == errno.EIO or name != "compacted metrics"  # which takes most of the time
]


@pytest.mark.parametrize("name", COMMITS)
def test_a_kill_at_any_call_leaves_the_old_state_or_the_new_one(place: Path, name: str) -> None:
    """Wherever the process dies, nothing half done is visible and the next writer succeeds."""
    work, look = COMMITS[name]
    template = place / "template"
    _scene(template)
    done = place / "done"
    shutil.copytree(template, done)
    before = look(Store.open(template))
    moments = deaths(partial(_open_and, work, done), done)
    after = look(Store.open(done))
    assert before != after, "a scenario that changes nothing tests nothing"
    for call, moment in moments:
        root = place / f"store-{call}-{moment}"
        shutil.copytree(template, root)
        killed = killed_at(partial(_open_and, work, root), call, moment)
        assert killed == ((call, moment) != moments[-1])
        _assert_sound(root)
        found = look(Store.open(root))
        assert found in (before, after)
        if not killed:
            assert found == after
            return
        work(Store.open(root))
        _assert_sound(root)
        assert look(Store.open(root)) != before
        shutil.rmtree(root)


@pytest.mark.parametrize(("name", "code"), ERRORS)
def test_an_error_at_any_call_is_the_stores_own_and_can_be_retried(
    place: Path, name: str, code: int
) -> None:
    """Whichever call fails, the caller gets an error of the store or success, and may try again."""
    work, look = COMMITS[name]
    template = place / "template"
    _scene(template)
    before = look(Store.open(template))
    # These write with other people's code, whose errors are plain.
    known: type[Exception] = OSError if name in ("frozen code", "compacted metrics") else StoreError
    for call in range(1, 300):
        root = place / f"store-{call}"
        shutil.copytree(template, root)
        store = Store.open(root)
        error = None
        with failing_at(call, code) as happened:
            try:
                work(store)
            except known as caught:
                error = caught
        _assert_sound(root)
        if not happened():
            assert error is None
            return
        if error is not None:
            work(store)
            _assert_sound(root)
        assert look(Store.open(root)) != before
        shutil.rmtree(root)
    raise AssertionError("the commit never came to an end")


SCRIPT = """
import sys
from detslurm.store import RunLog, Store
from tests.store.listing import rows_of
store = Store.open(sys.argv[1])
store.experiment(1).append({"type": "intent", "intent": "archive"})
trial = store.find_trial(1)
with RunLog.open(trial.records_path(1)) as log:
    log.commit({"t": "checkpoint", "uuid": "new", "steps": 20})
trial.write_end(1, {"outcome": "completed"})
rows_of(store)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("call", ["fsync", "link", "unlink", "pwrite64", "rename"])
def test_a_kill_inside_the_kernels_own_calls_is_survived(place: Path, call: str) -> None:
    """The same with real system calls: strace kills the process as it enters each of them."""
    template = place / "template"
    _scene(template)
    for count in range(1, 30):
        root = place / f"store-{count}"
        shutil.copytree(template, root)
        inject = f"inject=?{call},?{call}at:signal=KILL:when={count}"
        argv = ["strace", "-qq", "-o", "/dev/null", "-e", f"trace=?{call},?{call}at", "-e", inject]
        status = subprocess.run(
            [*argv, sys.executable, "-c", SCRIPT, str(root)], capture_output=True, text=True
        )
        _assert_sound(root)
        if status.returncode == 0:
            assert count > 1, "no such call was made"
            assert fold_experiment(Store.open(root).experiment(1)).state == "COMPLETED"
            return
        assert status.returncode in (-9, 137), status.stderr
    raise AssertionError("the script never came to an end")
