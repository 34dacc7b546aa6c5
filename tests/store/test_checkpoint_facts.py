"""Checkpoints are kept or deleted, never both, whoever races and whoever is killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from detslurm._base.process import Identity
from detslurm.store import (
    ExperimentDir,
    NotFound,
    Store,
    StoreError,
    fold_experiment,
    fold_facts,
    fold_trial,
)
from detslurm.store.checkpoint_facts import (
    LONGEST_HOLD,
    CheckpointGone,
    held,
    keep,
    mark_deleted,
    release,
)
from detslurm.store.records import CheckpointFilesRemoved, CheckpointMetadata, Intent
from detslurm.store.views import CheckpointView
from tests.store import scenes
from tests.store.faults import deaths, killed_at, race
from tests.store.listing import rows_of


def _saved(store: Store, *uuids: str) -> ExperimentDir:
    """An experiment whose one trial has saved these."""
    made = scenes.experiment(store)
    scenes.run(
        made.trial(made.created().first_trial),
        [
            {**scenes.checkpoint(uuid, step), "resources": {"weights": 9, "optimizer": 4}}
            for step, uuid in enumerate(uuids, 1)
        ],
        "completed",
    )
    return made


def _listed(made: ExperimentDir) -> dict[str, CheckpointView]:
    trial = made.created().first_trial
    view = fold_trial(made.trial(trial), fold_facts(made).context(trial))
    return {checkpoint.uuid: checkpoint for checkpoint in view.checkpoints}


def test_what_is_kept_is_not_deleted(store: Store) -> None:
    """The deletion says what protects each one, takes the others, and works after the release."""
    made = _saved(store, "a", "b", "c")
    number = keep(made, ["a", "b"], by="model resnet version 3")
    found = mark_deleted(made, ["a", "c"])
    assert found[:2] == (("c",), {"a": "model resnet version 3"})
    assert {uuid: c.state for uuid, c in _listed(made).items()} == {
        "a": "COMPLETED", "b": "COMPLETED", "c": "DELETED",
    }  # fmt: skip
    release(made, number)
    assert mark_deleted(made, ["a", "c"])[:2] == (("a", "c"), {})
    assert _listed(made)["a"].state == "DELETED"


def test_two_reasons_protect_until_both_are_gone(store: Store) -> None:
    """A release takes back its own reason only."""
    made = _saved(store, "a")
    first, second = keep(made, ["a"], by="experiment 12"), keep(made, ["a"], by="model m version 1")
    release(made, first)
    assert mark_deleted(made, ["a"]).kept == {"a": "model m version 1"}
    release(made, second)
    assert mark_deleted(made, ["a"]).deleted == ("a",)


def test_what_is_deleted_cant_be_kept(store: Store) -> None:
    """The keeper learns which one is gone, and protects none of the others by that."""
    made = _saved(store, "a", "b")
    mark_deleted(made, ["a"])
    with pytest.raises(CheckpointGone, match=r"checkpoint a of experiment 1 has been deleted"):
        keep(made, ["a", "b"], by="model m version 1")
    assert mark_deleted(made, ["b"]).deleted == ("b",)


def test_nothing_of_a_deleted_experiment_can_be_kept(store: Store) -> None:
    """What was kept before stays protected."""
    made = _saved(store, "a", "b")
    keep(made, ["a"], by="model m version 1")
    made.append(Intent(intent="delete"))
    with pytest.raises(CheckpointGone):
        keep(made, ["b"], by="model m version 2")
    assert mark_deleted(made, ["a", "b"])[:2] == (("b",), {"a": "model m version 1"})


def test_a_hold_ends_with_its_block_or_with_its_process(store: Store) -> None:
    """A download that was killed protects nothing any more; one that goes on does."""
    made = _saved(store, "a", "b")
    with held(made, ["a"], by="download by ada"):
        assert mark_deleted(made, ["a"]).kept == {"a": "download by ada"}
    child = os.fork()
    if child == 0:
        keep(made, ["a"], by="download by ada", holder=Identity.own())
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    facts = fold_facts(made).checkpoints
    assert [fact.uuids for fact in facts.kept.values()] == [("a",)]
    elsewhere = Identity("another-node".replace("-", ""), 1, "1")
    number = keep(made, ["b"], by="download by bob", holder=elsewhere)
    assert mark_deleted(made, ["a", "b"])[:2] == (("a",), {"b": "download by bob"})
    written = made.log.name(number).stat().st_mtime - LONGEST_HOLD - 1
    os.utime(made.log.name(number), (written, written))
    assert mark_deleted(made, ["b"]).deleted == ("b",)


def test_files_and_metadata_change(store: Store) -> None:
    """What was removed of one and what was set show in its view, in the row of its trial and in
    the listing of an experiment that is over."""
    made = _saved(store, "a")
    assert fold_experiment(made).trials[0].latest_checkpoint is not None
    rows_of(store)
    made.append(CheckpointMetadata(uuid="a", set={"note": "good", "old": 1}))
    made.append(CheckpointMetadata(uuid="a", set={"late": True}, remove=("old",)))
    found = _listed(made)["a"]
    assert (found.state, found.metadata) == ("COMPLETED", {"note": "good", "late": True})
    latest = fold_experiment(made).trials[0].latest_checkpoint
    assert latest is not None and latest.metadata == found.metadata
    replaced = {"weights": 5, "optimizer": 4}
    made.append(CheckpointFilesRemoved(uuid="a", resources=replaced))
    found = _listed(made)["a"]
    assert (found.state, found.resources) == ("COMPLETED", replaced)
    made.append(CheckpointFilesRemoved(uuid="a", resources={"weights": 5}))
    found = _listed(made)["a"]
    assert (found.state, found.resources) == ("PARTIALLY_DELETED", {"weights": 5})
    assert fold_experiment(made).trials[0].latest_checkpoint is None
    mark_deleted(made, ["a"])
    assert _listed(made)["a"].state == "DELETED"


def _keeps(made: ExperimentDir) -> str | None:
    try:
        keep(made, ["a"], by="model m version 1")
    except CheckpointGone:
        return None
    return "kept"


def _deletes(made: ExperimentDir) -> str | None:
    return "deleted" if mark_deleted(made, ["a"]).deleted else None


def _keeps_or_deletes(made: ExperimentDir, who: int) -> str | None:
    return _keeps(made) if who % 2 else _deletes(made)


def test_keepers_and_deleters_never_both_win(store: Store) -> None:
    """Of four processes at once either the keepers succeed, or the deleters do."""
    outcomes: set[str] = set()
    for attempt in range(200):
        if attempt >= 8 and len(outcomes) == 2:
            break
        made = _saved(store, "a")
        found = race(4, partial(_keeps_or_deletes, made))
        won = set(filter(None, found))
        assert len(won) == 1, found
        assert found.count(None) == 2, "all of one side agree"
        assert won == {_state(made)}
        outcomes |= won
    assert outcomes == {"kept", "deleted"}, "a race that only one side can win shows nothing"


def _state(made: ExperimentDir) -> str:
    facts = fold_facts(made).checkpoints
    assert ("a" in facts.deleted) != (facts.protection("a") is not None)
    return "deleted" if "a" in facts.deleted else "kept"


def _one_of(works: Sequence[Callable[[], object]], who: int) -> object:
    return works[who]()


@pytest.mark.parametrize("racing", [True, False])
@pytest.mark.parametrize("victim", ["keeper", "deleter"])
def test_a_kill_at_any_call_leaves_one_winner(place: Path, victim: str, racing: bool) -> None:
    """Whoever dies, wherever: the other side succeeds or learns that it lost, and after that both
    sides always give the same answer."""
    doomed, other = (_keeps, _deletes) if victim == "keeper" else (_deletes, _keeps)
    store = Store.open(place / "store")
    moments = deaths(partial(doomed, _saved(store, "a")), store.path)
    for call, moment in moments:
        made = _saved(store, "a")
        killed = partial(killed_at, partial(doomed, made), call, moment)
        if racing:
            both = (killed, partial(other, made))
            died, answer = race(2, partial(_one_of, both))
        else:
            died, answer = killed(), other(made)
        for _ in range(2):  # whoever asks again, in whatever order, hears the same
            answers = {"kept": _keeps(made), "deleted": _deletes(made)}
            assert sum(map(bool, answers.values())) == 1, (call, answers)
            assert answer is None or answers[answer], (call, answers)
        if not died:
            assert racing or answer is None, "who got done first has won"
        assert racing or died == ((call, moment) != moments[-1])


def test_unknown_experiments_keep_nothing(store: Store) -> None:
    """There is no fact before the experiment exists."""
    with pytest.raises(NotFound):
        mark_deleted(ExperimentDir(store, 9), ["a"])
    with pytest.raises(StoreError):
        keep(ExperimentDir(store, 9), ["a"], by="nobody")
