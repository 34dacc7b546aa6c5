"""A runner finds what it has submitted, however many experiments there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.sdk.search_runners import LocalSearchRunner, SubmissionMark, _find_marked
from detslurm.store import ExperimentDir, Store
from tests.sdk.methods import RandomSearch
from tests.sdk.scenes import Scene


def test_only_later_experiments_are_looked_at(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark is younger than all that was there when it was made."""
    for _ in range(3):
        scene.experiment()
    runner = LocalSearchRunner(RandomSearch(1, 1), tmp_path / "kept")
    mark = runner._mark(scene.store)
    assert mark.after == 3
    assert runner._mark(scene.store) == mark, "it is made once"
    seen: list[int] = []
    real = Store.experiment

    def experiment(self: Store, number: int) -> ExperimentDir:
        seen.append(number)
        return real(self, number)

    monkeypatch.setattr(Store, "experiment", experiment)
    assert _find_marked(scene.store, mark) is None
    assert seen == []
    own = scene.experiment(about={"runner": mark.text})
    scene.experiment(about={"runner": "another"})
    found = _find_marked(scene.store, mark)
    assert found is not None and found.id == own.id
    assert _find_marked(scene.store, SubmissionMark("another", own.id)) is not None
