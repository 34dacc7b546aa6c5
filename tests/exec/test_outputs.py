"""A trial's directory of outputs: the same for each run, and no longer a zombie's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from detslurm.config.run_config import RunOutputs
from detslurm.exec import outputs as module
from detslurm.exec.outputs import NodeOutputs, is_file_name
from detslurm.exec.outputs_record import outputs_claim, outputs_left
from detslurm.store import TrialDir
from detslurm.store.run_records import StartRecord

PATHS = ("checkpoints", "runs/latest.ckpt")


@pytest.fixture
def trial(tmp_path: Path) -> TrialDir:
    """A trial of a store."""
    found = TrialDir(tmp_path / "trial", 7, 3)
    found.create()
    return found


class Node:
    """One node's part of a run."""

    def __init__(self, trial: TrialDir, run: int, *, rank: int = 0, **more: Any) -> None:
        section = RunOutputs(paths=PATHS, shared=more.pop("shared", False))
        claim = outputs_claim(more.pop("storage"), trial, more.pop("copy", None))
        self.claim, self.messages = claim, list[str]()
        if not trial.start_path(run).exists():
            trial.open_run({"outputs": claim})
        node = SimpleNamespace(
            start=msgspec.convert({"outputs": claim, "trial": trial.id, "run": run}, StartRecord),
            config=SimpleNamespace(outputs=section),
            rank=rank,
            experiment=SimpleNamespace(trial=lambda number: trial),
        )
        link = SimpleNamespace(log_message=self.messages.append)
        self.outputs = NodeOutputs(node, link)  # type: ignore[arg-type]
        self.workdir = trial.path.parent / f"work-{run}-{rank}"
        self.workdir.mkdir()
        self.problem = self.outputs.prepare() or self.outputs.place(self.workdir)


@pytest.fixture
def storage(tmp_path: Path) -> dict[str, str]:
    """A checkpoint storage."""
    (tmp_path / "storage").mkdir()
    return {"type": "shared_fs", "host_path": str(tmp_path / "storage")}


def test_each_run_finds_what_the_one_before_has_left(
    trial: TrialDir, storage: dict[str, str]
) -> None:
    """And a zombie's paths lead nowhere from then on."""
    first = Node(trial, 1, storage=storage)
    assert first.outputs.variables({})["WANDB_DIR"] == str(first.outputs.path)
    assert "WANDB_DIR" not in first.outputs.variables({"WANDB_DIR": "/mine"})
    assert first.problem is None and first.outputs.path.stat().st_mode & 0o777 == 0o700
    (first.workdir / "checkpoints" / "last.pt").write_text("one")
    (first.workdir / "runs" / "latest.ckpt").write_text("two")
    assert outputs_left(trial, 1)[1]
    for name in ("checkpoints/last.pt", "runs/latest.ckpt"):
        os.utime(first.workdir / name, (1e9, 1e9))  # clocks of file systems tick slowly
    second = Node(trial, 2, storage=storage)
    assert second.claim["path"] == first.claim["path"]
    assert (second.workdir / "checkpoints" / "last.pt").read_text() == "one"
    assert (second.workdir / "runs" / "latest.ckpt").read_text() == "two"
    with pytest.raises(FileNotFoundError):
        (first.workdir / "checkpoints" / "last.pt").write_text("a zombie's")
    left, has_written = outputs_left(trial, 2)
    files = {name: size for name, size in left["resources"].items() if not name.endswith("/")}
    assert not has_written
    assert files == {"checkpoints/last.pt": 3, "runs/latest.ckpt": 3}


def test_what_replaces_a_link_is_copied(
    trial: TrialDir, storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file now and then, a directory at the end; not where the next run has begun."""
    monkeypatch.setattr(module, "_PERIOD", 0.0)
    node = Node(trial, 1, storage=storage)
    latest = node.workdir / "runs" / "latest.ckpt"
    (node.workdir / "runs" / "new").write_text("replaced")
    os.replace(node.workdir / "runs" / "new", latest)  # noqa: PTH105
    (node.workdir / "checkpoints").unlink()
    (node.workdir / "checkpoints").mkdir()
    (node.workdir / "checkpoints" / "a").write_text("directory")
    node.outputs._next_look = 0.0
    assert list(node.outputs.events()) == []
    assert (node.outputs.path / "runs" / "latest.ckpt").read_text() == "replaced"
    assert not (node.outputs.path / "checkpoints" / "a").exists()
    node.outputs.end()
    assert (node.outputs.path / "checkpoints" / "a").read_text() == "directory"
    assert node.messages == [
        "outputs: the code replaced the link runs/latest.ckpt: copied",
        "outputs: the code replaced the link checkpoints: copied",
    ]
    Node(trial, 2, storage=storage)
    latest.write_text("a zombie's, of another size")
    node.outputs.end()
    assert (node.outputs.path / "runs" / "latest.ckpt").read_text() == "replaced"
    assert "another run of the trial uses the directory now" in node.messages[-1]


def test_other_nodes_use_it_where_it_is_shared(trial: TrialDir, storage: dict[str, str]) -> None:
    """By default their code writes to the node's own disk."""
    chief = Node(trial, 1, storage=storage)
    other = Node(trial, 1, rank=1, storage=storage)
    assert not other.outputs.is_used and list(other.workdir.iterdir()) == []
    shutil.rmtree(chief.workdir)
    third = Node(trial, 1, rank=2, storage=storage, shared=True)
    assert third.outputs.is_used and (third.workdir / "checkpoints").is_symlink()


def test_it_begins_with_a_copy(trial: TrialDir, storage: dict[str, str], tmp_path: Path) -> None:
    """Of another trial's outputs; without these no code begins."""
    (source := tmp_path / "source" / "checkpoints").mkdir(parents=True)
    (source / "last.pt").write_text("copied")
    node = Node(trial, 1, storage=storage, copy=str(source.parent))
    assert (node.workdir / "checkpoints" / "last.pt").read_text() == "copied"
    gone = TrialDir(tmp_path / "other" / "trial", 8, 3)
    gone.create()
    lacking = Node(gone, 1, storage=storage, copy=str(tmp_path / "gone"))
    assert lacking.problem is not None and "are gone" in lacking.problem


def test_a_storage_that_is_not_mounted_is_no_fresh_start(
    trial: TrialDir, storage: dict[str, str], tmp_path: Path
) -> None:
    """The run fails on this node instead of training from the beginning."""
    Node(trial, 1, storage=storage)
    shutil.rmtree(tmp_path / "storage")
    problem = Node(trial, 2, storage=storage).problem
    assert problem is not None and "with what earlier runs left there, is not on" in problem


def test_a_bucket_leaves_them_in_the_store(trial: TrialDir) -> None:
    """The record has the place."""
    claim = outputs_claim({"type": "s3", "bucket": "b"}, trial, None)
    assert Path(claim["path"]).parent == trial.path / "outputs"
    assert claim["storage"]["container_path"] == str(trial.path / "outputs")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("last.ckpt", True), ("runs/a.json", True), ("runs", False), ("v1.0/", False)],
)
def test_names_with_a_suffix_are_files(name: str, expected: bool) -> None:
    """A slash behind the name makes it a directory's."""
    assert is_file_name(name) is expected
