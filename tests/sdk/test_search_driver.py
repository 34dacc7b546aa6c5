"""A custom search from its log: every event is answered once, whatever breaks in between."""

from __future__ import annotations

import errno
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm.sdk.searches.driver import SavedMethod, SearchDriver, load
from detslurm.sdk.searches.method_storage import DirectoryStorage
from detslurm.sdk.searches.worker_pool import WorkerPool
from detslurm.searcher import (
    Close,
    Create,
    Operation,
    Search,
    SearcherState,
    SearchMethod,
    Shutdown,
    State,
    ValidateAfter,
)
from detslurm.store import EventLog, ExperimentDir, Store, StoreError, StoreFull, retry
from detslurm.store.records import Created

from .methods import RandomSearch

CONFIG = {"searcher": {"name": "custom", "metric": "loss"}, "hyperparameters": {}}


@pytest.fixture
def experiment(tmp_path: Path) -> ExperimentDir:
    """An experiment whose search has not begun."""
    created = Created(name="x", trials=16, search=True)
    return Store.open(tmp_path / "store").create_experiment(created, CONFIG)


class Killed(BaseException):
    """The process is gone."""


class Trainers(WorkerPool):
    """Workers that train in no time, one trial a look; trial `bad` refuses its sample."""

    def __init__(self, experiment: ExperimentDir, bad: int | None = None) -> None:
        self.log = EventLog(experiment.search, Search(CONFIG))
        self.bad = bad
        self.lengths: list[tuple[int, int]] = []
        self.ended: list[State] = []

    def replenish(self, log: EventLog[State]) -> None:
        """One worker takes a trial, trains it to its target length and leaves."""
        index = self.log.commit([{"e": "work_requested", "worker": "1"}]).assignment("1")
        if index is None:
            return
        target = self.log.state.trials[index].target_length
        assert target is not None
        if index == self.bad:
            self.left(index, "invalid_hp")
            return
        self.lengths.append((index, target))
        metric = 0.4 if index % 2 else 0.6
        self.log.commit([{"e": "validated", "trial": index, "length": target, "metric": metric}])
        self.left(index, "out_of_ops")

    def left(self, index: int, how: str) -> None:
        self.log.commit([{"e": "run_ended", "trial": index, "worker": "1", "outcome": how}])

    def end(self, state: State) -> None:
        self.ended.append(state)


def search(
    experiment: ExperimentDir,
    method: SearchMethod,
    folder: Path,
    trainers: Trainers,
    sleep: Callable[[float], None] = lambda seconds: None,
    *,
    waits: bool = False,
) -> SavedMethod:
    """Run a method as a runner does, beginning or going on."""
    storage = DirectoryStorage(folder)
    saved = load(method, storage) or SavedMethod(SearcherState(), experiment.id, [])
    driver = SearchDriver(
        method, saved, experiment, storage, trainers, sleep=sleep, waits_for_store=waits
    )
    driver.run()
    return saved


def test_a_search_runs_from_its_first_operations_to_its_shutdown(
    experiment: ExperimentDir, tmp_path: Path
) -> None:
    """The method hears of everything in order and the state that it is given keeps step."""
    method, trainers = RandomSearch(4, 2), Trainers(experiment)
    saved = search(experiment, method, tmp_path / "kept", trainers)
    assert sorted(trainers.lengths) == [(0, 5), (1, 5), (1, 10), (2, 5), (3, 5), (3, 10)]
    assert [h for h in method.heard if " 2" in h] == [
        "created 2", "validated 2 5", "validated 2 10", "closed 2",
    ]  # fmt: skip
    assert len(saved.state.trials_closed) == 4 and not saved.state.failures
    assert saved.state.experiment_completed and not saved.state.experiment_failed
    (state,) = trainers.ended
    assert state.created == 4 and state.verdict == "completed"
    assert state.dialogue is not None and state.dialogue.progress == 0.75  # as it was told last


class HandsOn(RandomSearch):
    """A method that hands on the constants of the configuration, as many do."""

    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        operations = super().initial_operations(searcher_state)
        return [
            Create(one.request_id, {**one.hparams, "api_key": "hush-hush"})
            if isinstance(one, Create)
            else one
            for one in operations
        ]


def test_the_log_of_a_search_has_no_secret(tmp_path: Path) -> None:
    """Trials get the secrets from the configuration."""
    config = {**CONFIG, "hyperparameters": {"api_key": {"type": "const", "val": "hush-hush"}}}
    created = Created(name="x", trials=16, search=True)
    experiment = Store.open(tmp_path / "store").create_experiment(created, config)
    search(experiment, HandsOn(1, 1), tmp_path / "kept", Trainers(experiment))
    assert not any(b"hush" in path.read_bytes() for path in experiment.search.glob("*.json"))
    log = EventLog(experiment.search, Search(config))
    assert log.catch_up().created == 1
    assert Search(config).plan(log.state, 0).hparams["api_key"] == "hush-hush"


def test_a_refused_sample_is_told_as_such(experiment: ExperimentDir, tmp_path: Path) -> None:
    """It exits early, is closed, and counts neither as failure nor as progress."""
    method, trainers = RandomSearch(2, 2), Trainers(experiment, bad=0)
    saved = search(experiment, method, tmp_path / "kept", trainers)
    assert "exited 1 INVALID_HP" in method.heard and "closed 1" in method.heard
    assert not saved.state.failures
    assert len(saved.state.trial_progress) == 1


@pytest.mark.parametrize("moment", range(0, 40, 3))
def test_a_runner_that_is_killed_goes_on_where_it_was(
    experiment: ExperimentDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Whenever it dies, before or after saving or committing: no trial twice, none missing."""
    trainers, folder = Trainers(experiment), tmp_path / "kept"
    deaths = _dies_at(moment, trainers.log, monkeypatch)
    try:
        search(experiment, RandomSearch(4, 2), folder, trainers)
    except Killed:
        deaths.clear()
        method = RandomSearch(4, 2)  # as a new process has it: all that counts was saved
        search(experiment, method, folder, trainers)
        heard = [h for h in method.heard if h.startswith(("created", "closed"))]
        assert sorted(heard) == sorted(f"{w} {n}" for n in range(1, 5) for w in _WORDS)
    state = trainers.log.catch_up()
    assert state.done and state.created == 4
    assert sorted(trainers.lengths) == [(0, 5), (1, 5), (1, 10), (2, 5), (3, 5), (3, 10)]


_WORDS = ("created", "closed")


def _dies_at(moment: int, others: EventLog[State], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Die before the save or the commit number `moment` // 2 of the runner, or after it."""
    left = [moment]

    def deadly(act: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any) -> Any:
            if self is others or not left:
                return act(self, *args)
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            found = act(self, *args)
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return found

        return run

    monkeypatch.setattr(DirectoryStorage, "save", deadly(DirectoryStorage.save))
    monkeypatch.setattr(EventLog, "commit", deadly(EventLog.commit))
    return left


def test_a_method_saved_too_early_is_refused(experiment: ExperimentDir, tmp_path: Path) -> None:
    """A copy from before the last answer would lose events: it says so instead."""
    search(experiment, RandomSearch(2, 2), tmp_path / "kept", Trainers(experiment))
    with pytest.raises(RuntimeError, match="another runner"):
        search(experiment, RandomSearch(2, 2), tmp_path / "other", Trainers(experiment))


def test_the_users_word_ends_it(experiment: ExperimentDir, tmp_path: Path) -> None:
    """A canceled experiment's runner leaves, and the search is neither completed nor failed."""
    trainers = Trainers(experiment)
    experiment.append({"type": "intent", "intent": "cancel"})
    saved = search(experiment, RandomSearch(2, 2), tmp_path / "kept", trainers)
    assert not saved.state.experiment_completed and not trainers.ended


def test_it_looks_less_and_less_often_while_nothing_happens(
    experiment: ExperimentDir, tmp_path: Path
) -> None:
    """Pauses double up to ten seconds, and begin anew with the next event."""
    trainers, pauses = Trainers(experiment), list[float]()
    trainers.replenish = lambda log: None  # type: ignore[method-assign]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            experiment.append({"type": "intent", "intent": "kill"})

    search(experiment, RandomSearch(2, 2), tmp_path / "kept", trainers, sleep)
    assert pauses == [0.25, 0.5, 1, 2, 4, 8, 10, 10]


def test_what_is_kept_is_little(experiment: ExperimentDir, tmp_path: Path) -> None:
    """The last two states are there, whole, named after the event that they follow."""
    search(experiment, RandomSearch(4, 2), tmp_path / "kept", Trainers(experiment))
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert len(names) == 2 and all(name.startswith("event_") for name in names)
    with DirectoryStorage(tmp_path / "kept").latest() as newest:
        assert newest is not None
        content = json.loads((newest / "searcher_state.json").read_text())
    assert content["experimentId"] == experiment.id


def test_a_search_that_ends_before_its_last_answer(
    experiment: ExperimentDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last trial leaves while the method thinks: nobody waits for the answer any more."""
    trainers = Trainers(experiment)

    class Hasty(RandomSearch):
        def on_validation_completed(self, *args: Any) -> list[Operation]:
            return [Shutdown()]

        def on_trial_closed(self, *args: Any) -> list[Operation]:
            trainers.left(0, "out_of_ops")
            return []

    def train(log: EventLog[State]) -> None:
        if trainers.log.commit([{"e": "work_requested", "worker": "1"}]).assignment("1") == 0:
            report = {"e": "validated", "trial": 0, "length": 5, "metric": 0.4}
            trainers.log.commit([report])

    trainers.replenish = train  # type: ignore[method-assign]
    commits, commit = [0], EventLog.commit

    def counted(self: Any, *args: Any) -> Any:
        commits[0] += 1
        assert commits[0] < 50, "it gives its answer again and again"
        return commit(self, *args)

    monkeypatch.setattr(EventLog, "commit", counted)
    saved = search(experiment, Hasty(2, 2), tmp_path / "kept", trainers)
    assert saved.state.experiment_completed and len(trainers.ended) == 1


_NOBODY = uuid.UUID(int=99, version=4)


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (ValidateAfter(_NOBODY, 3), "ValidateAfter of a trial that it has not created"),
        (Close(_NOBODY), "Close of a trial that it has not created"),
        (ValidateAfter(uuid.UUID(int=1, version=4), 0), "a length below 1"),
        (Create(_NOBODY, None), "an operation with a wrong value"),  # type: ignore[arg-type]
        (Create(_NOBODY, {"a": {"seed": 2**64}}), "a hyperparameter beyond 64 bits"),
    ],
)
def test_what_means_nothing_is_refused(
    experiment: ExperimentDir, tmp_path: Path, operation: Operation, said: str
) -> None:
    """The method's author is told at once, where the search would wait for a trial in vain."""

    class Mistaken(RandomSearch):
        def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
            return [*super().initial_operations(searcher_state), operation]

    with pytest.raises(ValueError, match=f"Mistaken asks for {said}"):
        search(experiment, Mistaken(2, 2), tmp_path / "kept", Trainers(experiment))


def test_two_runners_of_one_search_do_not_go_on_beside_each_other(
    experiment: ExperimentDir, tmp_path: Path
) -> None:
    """The one that finds events answered that it has not seen leaves, instead of missing them."""
    trainers, looks = Trainers(experiment), [0]
    kept, other = tmp_path / "kept", tmp_path / "other"

    def begin_another(log: EventLog[State]) -> None:
        looks[0] += 1
        if looks[0] == 2:
            shutil.copytree(kept, other)
            storage = DirectoryStorage(other)
            saved = load(method := RandomSearch(4, 2), storage)
            assert saved is not None
            rounds = iter([False, False, False, True])
            SearchDriver(
                method, saved, experiment, storage, trainers,
                should_stop=lambda: next(rounds), sleep=lambda seconds: None,
            ).run()  # fmt: skip
        Trainers.replenish(trainers, log)

    def waits(seconds: float) -> None:
        assert seconds < 10, "it waits for what it has missed"

    begins = Trainers(experiment)
    begins.replenish = begin_another  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="another runner is at work"):
        search(experiment, RandomSearch(4, 2), kept, begins, waits)
    assert looks[0] == 2


@pytest.mark.parametrize("call", range(1, 60, 4))
def test_a_hiccup_of_the_store_does_not_end_a_search(
    experiment: ExperimentDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Of a runner that nobody starts again before the next morning: one call of it fails once."""
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=lambda seconds: None))
    trainers, left = Trainers(experiment), [call]

    def fails_once(act: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **more: Any) -> Any:
            if self is not trainers.log:
                left[0] -= 1
                if left[0] == 0:
                    raise StoreError("the file server is not there")
            return act(self, *args, **more)

        return run

    for owner, name in (
        (EventLog, "catch_up"), (EventLog, "commit"), (ExperimentDir, "facts"),
        (DirectoryStorage, "save"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, fails_once(getattr(owner, name)))
    search(experiment, RandomSearch(4, 2), tmp_path / "kept", trainers)
    state = trainers.log.catch_up()
    assert state.done and state.created == 4
    assert sorted(trainers.lengths) == [(0, 5), (1, 5), (1, 10), (2, 5), (3, 5), (3, 10)]


@pytest.mark.parametrize(
    "fault",
    [
        OSError(errno.EIO, "the batch script can't be written"),
        OSError(errno.ENOSPC, "no space left"),
        StoreFull("disk quota exceeded", errno.EDQUOT, "store"),
    ],
)
def test_a_local_runner_waits_for_a_store_that_is_full_or_away(
    experiment: ExperimentDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: OSError
) -> None:
    """For longer than any job would: nobody starts it again. A job gives up with the same error."""
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=lambda seconds: None))
    kept, real, left = tmp_path / "kept", DirectoryStorage.save, [3 * len(retry.LONG)]

    def save(self: DirectoryStorage, event: int, fill: Callable[[Path], None]) -> None:
        left[0] -= 1
        if left[0] > 0:
            raise fault
        real(self, event, fill)

    monkeypatch.setattr(DirectoryStorage, "save", save)
    with pytest.raises(OSError, match=str(fault.args[1])):
        search(experiment, RandomSearch(2, 1), kept, Trainers(experiment))
    saved = search(experiment, RandomSearch(2, 1), kept, Trainers(experiment), waits=True)
    assert saved.state.experiment_completed
