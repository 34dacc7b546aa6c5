"""`best` and `latest` of an experiment lead where its facts say, whoever writes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from detslurm.storage import Storages
from detslurm.store import ExperimentDir, RunLog, Store
from detslurm.store.checkpoint_facts import mark_deleted
from detslurm.store.checkpoint_index import CheckpointRow, SavedCheckpoints
from detslurm.store.checkpoint_links import Links, correct_links, links_of
from detslurm.store.gc import Collector
from tests.store import scenes
from tests.store.faults import race


def row(uuid: str, time: float, state: str = "COMPLETED", **metrics: float) -> CheckpointRow:
    """A checkpoint of a trial of its own."""
    return CheckpointRow(
        uuid=uuid, trial=ord(uuid), run=1, steps=1, time=time, state=state, metrics=metrics
    )


ROWS = [
    row("a", 3.0, loss=0.5),
    row("b", 1.0, loss=0.25),
    row("c", 2.0, loss=float("nan")),
    row("d", 4.0),
    row("g", 3.5, loss=float("-inf")),
    row("h", 3.5, loss=float("inf")),
    row("e", 9.0, "DELETED", loss=0.0),
    row("f", 8.0, "PARTIALLY_DELETED", loss=0.0),
]


@pytest.mark.parametrize(
    ("rows", "smaller", "links"),
    [
        (ROWS, True, Links("b", "d")),
        (ROWS, False, Links("a", "d")),
        (ROWS[3:4], True, Links(None, "d")),
        (ROWS[6:], True, Links(None, None)),
    ],
)
def test_the_best_and_the_newest_of_what_is_whole(
    rows: list[CheckpointRow], smaller: bool, links: Links
) -> None:
    """Without a validation at its step none is the best; deleted ones are neither."""
    search = SavedCheckpoints(experiment=1, metric="loss", smaller_is_better=smaller)
    assert links_of(rows, search) == links


def test_the_newest_of_a_trial_is_its_last_whatever_clocks_say() -> None:
    """One node's clock may be minutes ahead of the next one's."""
    first = row("a", 900.0)
    second = structs.replace(row("a", 700.0), uuid="b", run=2, steps=2)
    for other, newest in (row("c", 650.0), "b"), (row("c", 800.0), "c"):
        found = links_of([first, second, other], SavedCheckpoints(experiment=1))
        assert found.latest == newest


def _save(made: ExperimentDir, base: Path, uuid: str, step: int, loss: float) -> None:
    trial = made.trial(made.created().first_trial)
    (base / uuid).mkdir(parents=True, exist_ok=True)
    with RunLog.open(trial.records_path(trial.open_run({"time": 1.0}).run)) as log:
        log.append(scenes.metrics(step, "validation", loss=loss))
        log.commit({**scenes.checkpoint(uuid, step), "time": float(step)})


def _leads_to(made: ExperimentDir) -> dict[str, str | None]:
    found = {name: made.path / name for name in ("best", "latest")}
    return {n: link.resolve().name if link.is_dir() else None for n, link in found.items()}


def _files(base: Path) -> Storages:
    return Storages({"type": "shared_fs", "host_path": str(base)}, base.parent)


def test_links_follow_what_is_saved_and_deleted(store: Store, tmp_path: Path) -> None:
    """They are relative, and gone when there is nothing to lead to."""
    made, base = scenes.experiment(store), store.path / "checkpoints"
    collector = Collector(made, _files(base))
    for step, (uuid, loss) in enumerate([("a", 0.5), ("b", 0.25), ("c", 0.75)], 1):
        _save(made, base, uuid, step, loss)
        correct_links(made, base, collector.links)
    assert _leads_to(made) == {"best": "b", "latest": "c"}
    assert (made.path / "best").readlink() == Path("../../checkpoints/b")
    mark_deleted(made, ["b", "c"])
    correct_links(made, base, collector.links)
    assert _leads_to(made) == {"best": "a", "latest": "a"}
    mark_deleted(made, ["a"])
    correct_links(made, base, collector.links)
    assert not {"best", "latest"} & {path.name for path in made.path.iterdir()}


def _saves_and_links(made: ExperimentDir, base: Path, who: int) -> None:
    trial = made.trial(made.created().first_trial + who)
    with RunLog.open(trial.records_path(trial.open_run({"time": 1.0}).run)) as log:
        for step in range(1, 6):
            log.append(scenes.metrics(step, "validation", loss=1 / (step + who)))
            log.commit({**scenes.checkpoint(f"t{who}s{step}", step), "time": step + who / 10})
            correct_links(made, base, Collector(made, _files(base)).links)


def test_links_are_right_after_many_writers(store: Store) -> None:
    """Whoever writes last with an old view looks again, and mends it."""
    base = store.path / "checkpoints"
    for _ in range(5):
        made = scenes.experiment(store, trials=3)
        race(3, partial(_saves_and_links, made, base))
        links = {name: str((made.path / name).readlink()) for name in ("best", "latest")}
        assert links == dict.fromkeys(links, "../../checkpoints/t2s5")
        assert not [path for path in made.path.iterdir() if path.name.endswith(".tmp")]
