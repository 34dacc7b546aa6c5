"""Collecting while others download and register, in real processes that are killed at any time."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from detslurm.sdk.checkpoints.download import download
from detslurm.sdk.errors import LifecycleError, SubmitError
from detslurm.store import CheckpointView, ExperimentDir, fold_facts, fold_trial
from detslurm.store.checkpoint_facts import CheckpointGone, keep
from tests.sdk.scenes import Scene
from tests.store import collecting
from tests.store.collecting import collect, run, storage

FILES = {f"part-{number:02d}": f"{number}" * 5000 for number in range(40)}
GONE, DONE = 3, 0


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """An empty store."""
    return Scene(tmp_path / "store")


def started(work: Callable[[], int]) -> int:
    """A child that does this; its exit status is what it returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 70
        try:
            status = work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    return child


def ended(child: int) -> int | None:
    """The exit status of a child; None where it was killed."""
    _, status = os.waitpid(child, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def saved(made: ExperimentDir) -> CheckpointView:
    """The checkpoint that the policy does not keep."""
    trial = made.created().first_trial
    view = fold_trial(made.trial(trial), fold_facts(made).context(trial))
    return next(one for one in view.checkpoints if one.uuid == "a")


def content(folder: Path) -> dict[str, str]:
    """What is in a copy, but for what was added to it."""
    return {p.name: p.read_text() for p in folder.iterdir() if p.name in FILES}


def downloads(made: ExperimentDir, target: Path) -> int:
    """Copy the checkpoint; whole, or a clear word that it is gone."""
    try:
        download(made, saved(made), target)
    except LifecycleError:
        return GONE
    return DONE


def collects(scene: Scene, made: ExperimentDir) -> int:
    """Delete what the policy does not keep."""
    collect(scene, made)
    return DONE


def registers(made: ExperimentDir, name: str) -> int:
    """Keep the checkpoint for good."""
    try:
        keep(made, ["a"], by=name)
    except CheckpointGone:
        return GONE
    return DONE


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_that_somebody_got(scene: Scene, tmp_path: Path, seed: int) -> None:
    """A copy that appeared is whole; what was registered is there, whole; what nobody needs goes,
    once those who held it are dead."""
    chance = random.Random(seed)
    made = collecting.experiment(scene, trial_best=0)
    run(scene, made, 0, [("a", 1, None), ("b", 2, None)])
    for name, text in FILES.items():
        (scene.checkpoints / "a" / name).write_text(text)
    targets = [tmp_path / f"copy-{number}" for number in range(2)]
    register = seed % 2 == 0

    children: dict[str, int] = {}
    for number, target in enumerate(targets):
        children[f"download {number}"] = started(lambda t=target: downloads(made, t))  # type: ignore[misc]
        children[f"collect {number}"] = started(lambda: collects(scene, made))
        if register:
            name = f"model m version {number}"
            children[name] = started(lambda n=name: registers(made, n))  # type: ignore[misc]
    for victim in chance.sample(sorted(children), 2):
        time.sleep(chance.random() * 0.02)
        os.kill(children[victim], signal.SIGKILL)
    results = {name: ended(child) for name, child in children.items()}
    assert 70 not in results.values(), results

    # Whoever comes now: first those who only look, then one who collects what is left.
    for target in targets:
        if target.exists():
            assert content(target) == FILES
    kept = any(status == DONE for name, status in results.items() if name.startswith("model"))
    collect(scene, made)
    protected = fold_facts(made).checkpoints.protection("a")
    if kept:
        assert protected is not None and storage(scene).exists("a")
        assert content(storage(scene).path("a")) == FILES
    if protected is None:
        assert saved(made).state == "DELETED"
        scene.client.gc()
        assert {path.name for path in scene.checkpoints.iterdir()} == {"b"}
    # A download that was killed goes on, or learns that there is nothing any more.
    for target in targets:
        again = target.exists() or downloads(made, target) == DONE
        assert not again or content(target) == FILES
        assert again or protected is None
    shutil.rmtree(tmp_path / "store")


def continues(scene: Scene, number: int) -> int:
    """Train on from the latest checkpoint, or hear that it is gone."""
    try:
        scene.client.experiment(number).continue_(["searcher.max_length=20"])
    except (SubmitError, LifecycleError, CheckpointGone):
        return GONE
    return DONE


def children_of(scene: Scene, number: int) -> list[int]:
    """The experiments that continue it."""
    return [row.id for row in scene.client.rows() if row.parent == number]


@pytest.mark.parametrize("seed", range(6))
def test_what_a_continuation_begins_with_is_there(scene: Scene, seed: int) -> None:
    """`continue` beside collectors that let go of everything: an experiment that was submitted has
    its checkpoint, whole, until it is deleted; what was refused or killed protects nothing."""
    chance = random.Random(seed)
    made = collecting.experiment(scene, trial_best=0, latest=0)
    scene.run(made, losses=[2.0], checkpoint="a", end="completed")
    for name, text in FILES.items():
        (scene.checkpoints / "a" / name).write_text(text)
    began = time.monotonic()
    children = {
        f"continue {number}": started(lambda: continues(scene, made.id)) for number in range(3)
    }
    # A submission takes a few tenths of a second, a collection less.
    for moment, act in sorted(
        [(chance.random() / 2, act) for act in ("collect 0", "collect 1", "kill", "kill")]
    ):
        time.sleep(max(0.0, began + moment - time.monotonic()))
        if act == "kill":
            os.kill(children[chance.choice(sorted(children))], signal.SIGKILL)
        else:
            children[act] = started(lambda: collects(scene, made))
    results = {name: ended(child) for name, child in children.items()}
    assert 70 not in results.values(), results

    scene.client.gc()
    submitted = [n for n in children_of(scene, made.id) if scene.client.stored(n).view.jobs]
    assert len(submitted) >= sum(
        status == DONE for name, status in results.items() if name.startswith("continue")
    )
    if submitted:
        assert content(storage(scene).path("a")) == FILES
    for number in children_of(scene, made.id):
        child = scene.client.experiment(number)
        child.kill()
        child.reload().delete()
    scene.client.gc()
    assert saved(made).state == "DELETED" and not storage(scene).exists("a")
