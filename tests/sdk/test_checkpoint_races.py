"""Downloads beside deletions: a copy is whole or not there, whoever is killed at what."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from detslurm.sdk import Client, LifecycleError
from detslurm.storage import list_resources
from detslurm.store import ExperimentDir, RunLog
from tests.sdk.scenes import Scene
from tests.store.faults import deaths, killed_at

UUID = "aaaa1111-0000-4000-8000-000000000001"
FILES = {"weights": "w" * 1000, "nested/optimizer": "o" * 500, "nested/deep/state": "s"}


def saved(root: Path) -> ExperimentDir:
    """A finished experiment with one checkpoint."""
    experiment = Scene(root).experiment()
    path = root / "checkpoints" / UUID
    for name, text in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    trial = experiment.trial(1)
    trial.open_run({"time": 1.0})
    with RunLog.open(trial.records_path(1)) as log:
        log.commit({"t": "checkpoint", "uuid": UUID, "steps": 1, "time": 1.0,
                    "resources": list_resources(path), "metadata": {}})  # fmt: skip
    trial.write_end(1, {"outcome": "completed", "time": 2.0})
    return experiment


def download(root: Path, target: Path) -> str:
    """What became of a download."""
    try:
        Client(root).checkpoint(UUID).download(target)
    except LifecycleError as error:
        return str(error)
    return "whole"


def delete(root: Path) -> str:
    """What became of a deletion."""
    try:
        Client(root).checkpoint(UUID).delete()
    except LifecycleError as error:
        return str(error)
    return "deleted"


def is_whole(target: Path) -> bool:
    """Whether it has all files as they were."""
    return all((target / name).read_text() == text for name, text in FILES.items())


def test_a_download_that_is_killed_leaves_nothing_half(tmp_path: Path) -> None:
    """At no call: the target is whole or not there, the next attempt completes it with nothing
    left beside it, and what the dead process held can be deleted."""
    template = tmp_path / "template"
    saved(template)

    def copied(name: str) -> tuple[Path, Path]:
        root = tmp_path / f"store-{name}"
        shutil.copytree(template, root, symlinks=True)
        path = root / "experiments/1/config.json"
        text = path.read_text()
        path.write_text(text.replace(str(template), str(root)))
        return root, tmp_path / name / "copy"

    download(*copied("first"))  # what this process remembers changes which calls it makes
    root, target = copied("whole")
    moments = deaths(partial(download, root, target), root, target.parent)
    assert len(moments) > 10
    for call, moment in moments:
        root, target = copied(f"{call}-{moment}")
        killed = killed_at(partial(download, root, target), call, moment)
        assert killed == ((call, moment) != moments[-1])
        assert not target.exists() or is_whole(target), call
        assert download(root, target) == "whole"
        assert is_whole(target) and [p.name for p in target.parent.iterdir()] == ["copy"]
        assert delete(root) == "deleted", call
