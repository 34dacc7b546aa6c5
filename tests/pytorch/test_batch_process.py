"""Batch inference: each batch's outputs are committed once, over any number of runs and ranks."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import runpy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from detslurm import core
from detslurm._base import trust
from detslurm.cli.app import run as detslurm
from detslurm.core import DistributedContext
from detslurm.core._checkpoint_records import CheckpointRecords
from detslurm.core._output_files import OutputFiles
from detslurm.pytorch.experimental import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    torch_batch_process,
)
from detslurm.pytorch.experimental._batch_process import _REDUCED, _read_reduced
from detslurm.sdk import Client, LifecycleError
from detslurm.storage import ObjectStore
from detslurm.store import FoldContext
from detslurm.store.gc import trial_checkpoints
from tests.core.ranks import on_ranks
from tests.docs.pages import REPOSITORY, blocks
from tests.pytorch.managed import Managed

RECORDS, BATCH = 10_000, 50


class Killed(Exception):
    """In place of a signal that ends a rank."""


class Copies(TorchBatchProcessor):
    """Writes the records of each batch to a file; `at` is called at each step of the way."""

    at: Callable[[str, int], None] = staticmethod(lambda what, number: None)

    def __init__(self, context: TorchBatchProcessorContext) -> None:
        self.context = context
        self.counted = context.wrap_reducer(sum, "records", for_training=False)
        self.newest = 0

    def process_batch(self, batch: torch.Tensor, batch_idx: int) -> None:
        Copies.at("batch", batch_idx)
        with self.context.upload_path() as path:
            (path / f"{batch_idx}.json").write_text(json.dumps(batch.tolist()))
            Copies.at("upload", batch_idx)
        self.counted.update(len(batch))  # type: ignore[attr-defined]
        self.newest = batch_idx

    def on_checkpoint_start(self) -> None:
        Copies.at("checkpoint", self.newest)

    def on_finish(self) -> None:
        Copies.at("finish", self.newest)


def process(dist: DistributedContext | None = None, **options: Any) -> None:
    torch_batch_process(Copies, range(RECORDS), BATCH, distributed_context=dist, **options)


def downloaded(managed: Managed, to: Path) -> list[int]:
    """The records of all files that a download has, as often as they are there."""
    trial = Client(root=managed.experiment.store.path).stored_trial(managed.trial.id)
    outputs = trial.outputs()
    outputs.download(to)
    files = [path for path in to.rglob("*") if path.is_file()]
    assert {str(path.relative_to(to)) for path in files} == outputs.resources.keys()
    return [record for path in files for record in json.loads(path.read_text())]


def kill_at(monkeypatch: pytest.MonkeyPatch, point: str, first: int) -> None:
    """Kill the rank that comes first to this point past batch `first`."""
    spent = threading.Lock()
    commit = CheckpointRecords.commit

    def at(here: str, number: int) -> None:
        if here == point and number >= first and spent.acquire(blocking=False):
            raise Killed

    def killed_before_commit(records: CheckpointRecords, *args: Any) -> None:
        if point == "commit" and args[1]["steps_completed"] > first:
            raise Killed
        commit(records, *args)

    monkeypatch.setattr(Copies, "at", at)
    monkeypatch.setattr(CheckpointRecords, "commit", killed_before_commit)


def test_kills_at_every_interval_and_other_numbers_of_ranks(
    managed: Managed, tmp_path: Path
) -> None:
    """Every run is killed in its second interval, at other points and with other ranks."""
    sizes = itertools.cycle([(4, 2), (1, 1), (3, 1)])  # ranks, nodes
    points = itertools.cycle(["batch", "upload", "checkpoint", "commit"])
    runs, seen = 0, list[int]()
    while managed.view().progress < 1.0:
        size, nodes = next(sizes)
        done = max(managed.checkpoints(), default=0)
        with managed.run() as _, pytest.MonkeyPatch.context() as patch:
            kill_at(patch, next(points), done + 5 * size)
            on_ranks(size, process, nodes)
        runs += 1
        seen.append(max(managed.checkpoints()))
    assert runs > 12 and len(set(seen)) == runs  # each run has come one interval further
    with managed.run():
        process()
    assert sorted(downloaded(managed, tmp_path / "got")) == list(range(RECORDS))
    assert managed.metrics("inference")[-1].metrics == {"records": RECORDS}


def test_a_run_that_was_given_up_commits_late(managed: Managed, tmp_path: Path) -> None:
    """It is suspended in its second commit; the next run is killed before its own, and the third
    goes on from the late one."""
    commit, given_up = CheckpointRecords.commit, list[int]()

    def suspended(records: CheckpointRecords, *args: Any) -> None:
        if args[1]["steps_completed"] == 10 and not given_up:
            given_up.append(10)
            with managed.run(), pytest.MonkeyPatch.context() as patch:
                kill_at(patch, "batch", 7)
                with pytest.raises(Killed):
                    process(max_batches=20)
        commit(records, *args)
        if given_up:
            raise Killed

    with managed.run(), pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(CheckpointRecords, "commit", suspended)
        process(max_batches=20)
    assert managed.checkpoints() == [5, 5]  # with the outputs: what came late is cut off
    with managed.run():
        process(max_batches=20)
    assert sorted(downloaded(managed, tmp_path / "got")) == list(range(1000))


def test_a_preempted_run_goes_on_with_its_metrics(managed: Managed, tmp_path: Path) -> None:
    ends = []
    with managed.run() as flag, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Copies, "at", lambda what, _: flag.request_preemption())
        process(max_batches=100)
        assert flag.acknowledged
    assert [c.steps for c in managed.view().checkpoints] == [5, 5]  # the outputs are the second
    assert managed.view().progress == 0.05
    with managed.run(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Copies, "at", lambda what, _: ends.append(what))
        process(checkpoint_interval=50)
    assert ends.count("batch") == 95 and ends[-1] == "finish"
    reported = [(row.steps, row.metrics["records"]) for row in managed.metrics("inference")]
    assert reported == [(5, 250), (100, 5000)]
    assert sorted(downloaded(managed, tmp_path / "got")) == list(range(5000))
    found = trial_checkpoints(managed.trial, FoldContext(), {})
    assert len(found.saved) == 4 and found.outputs == []  # no policy deletes results
    with managed.run(), pytest.raises(ValueError, match="in batches of 50"):
        torch_batch_process(Copies, range(RECORDS), 10)


def test_by_hand_in_one_process(
    root: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a checkpoint of a training, which then has the metrics of the inference, too."""
    with core.init() as training:
        training.train.report_validation_metrics(7, {"loss": 0.5})
        with training.checkpoint.store_path({"steps_completed": 7}) as (_, uuid):
            pass
    client = Client(root=root)

    class Uses(Copies):
        def __init__(self, context: TorchBatchProcessorContext) -> None:
            super().__init__(context)
            context.report_task_using_checkpoint(client.checkpoint(uuid))

    torch_batch_process(Uses, range(RECORDS), BATCH, max_batches=1000)
    assert "the whole dataset is processed once" in caplog.text
    outputs = client.stored_trial(2).outputs()
    assert len(outputs.resources) == RECORDS // BATCH
    assert outputs.path is not None and len([*outputs.path.glob("rank_0/*.json")]) == 200
    found = client.checkpoint(uuid)
    rows = [(row.trial_id, row.group, row.metrics) for row in found.get_metrics()]
    inference = {"records": RECORDS}
    assert rows == [(1, "validation", {"loss": 0.5}), (2, "inference", inference)]
    version = client.create_model("net").register_version(uuid)
    assert [row.metrics for row in version.get_metrics("inference")] == [inference]
    detslurm(["checkpoint", "describe", uuid])
    assert "trial 2: inference records=10000" in " ".join(capsys.readouterr().out.split())


class Summarizes(Copies):
    def on_finish(self) -> None:
        with self.context.upload_path() as path:
            (path / "summary.txt").write_text("all")


@pytest.mark.parametrize("records", [0, 7])
def test_files_of_the_end_are_committed(managed: Managed, records: int) -> None:
    def process(dist: DistributedContext) -> None:
        torch_batch_process(Summarizes, range(records), 2, distributed_context=dist)

    with managed.run():
        on_ranks(2, process)
    outputs = Client(root=managed.experiment.store.path).stored_trial(managed.trial.id).outputs()
    ended = {"rank_0/summary.txt", "rank_1/summary.txt"}
    assert outputs.resources.keys() >= ended and len(outputs.resources) == 2 + (records + 1) // 2


class OnlyCounts(Copies):
    def process_batch(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.counted.update(len(batch))  # type: ignore[attr-defined]


def test_an_inference_without_files(root: Path, tmp_path: Path) -> None:
    """It can be verified and bundled, and has no outputs."""
    torch_batch_process(OnlyCounts, range(3))
    client = Client(root=root)
    trial = client.stored_trial(1)
    assert [one.verify() for one in trial.checkpoints()] == [None, None]
    assert client.stored(1).bundle(tmp_path / "a.tar", checkpoints="all").checkpoints
    with pytest.raises(LifecycleError, match="has no outputs"):
        trial.outputs()


class Odd(Copies):
    """Writes files, directories and links with odd names."""

    def process_batch(self, batch: torch.Tensor, batch_idx: int) -> None:
        with self.context.upload_path() as path:
            below = path / f"a b\n{batch_idx}" / "empty"
            below.mkdir(parents=True)
            (path / os.fsdecode(b"\xff%d" % batch_idx)).write_text("text")
            (path / f"inside{batch_idx}").symlink_to(below.parent)
            (path / f"nowhere{batch_idx}").symlink_to("/nowhere")


def test_odd_outputs_are_verified_and_bundled(root: Path, tmp_path: Path) -> None:
    """Files that a killed run has left beside the committed ones are no part of a bundle."""
    torch_batch_process(Odd, range(3))
    client = Client(root=root)
    outputs = client.stored_trial(1).outputs()
    assert len(outputs.resources) == 15 and outputs.path is not None
    (outputs.path / "rank_0" / "uncommitted").touch()
    assert outputs.verify() is None
    client.stored(1).bundle(tmp_path / "a.tar", checkpoints="latest")
    other = Client(root=tmp_path / "there")
    imported = other.experiment(other.import_bundle(tmp_path / "a.tar").experiment_id)
    begun = tmp_path / f".got0.{outputs.uuid[:8]}.partial"  # by a download that was interrupted
    begun.mkdir()
    (begun / ".0123.tmp").touch()
    for number, one in enumerate((outputs, imported.trials()[0].outputs())):
        got = one.download(tmp_path / f"got{number}") / "rank_0"
        assert (got / os.fsdecode(b"\xff2")).read_text() == "text"
        assert (got / "inside2").is_dir() and not (got / "uncommitted").exists()
    assert not begun.exists() and not (tmp_path / "got0" / ".0123.tmp").exists()
    client.experiment(1).delete()
    assert not outputs.path.exists()


def test_outputs_in_a_bucket(tmp_path: Path) -> None:
    bucket = ObjectStore("memory", f"bucket{tmp_path}")
    files = OutputFiles(bucket, "one", "rank_1")
    for text in ("first", "other"):
        with files.added() as path:
            (path / "below").mkdir()
            (path / "below" / "0.txt").write_text(text)
            (path / "nowhere").symlink_to("/nowhere")
    with pytest.raises(Killed), files.added() as path:
        (path / "1.txt").write_text("half")
        raise Killed
    assert files.taken() == {"rank_1/below/": 0, "rank_1/below/0.txt": 5}
    assert files.taken() == {}
    assert bucket._fs.cat_file(bucket._key("one", "rank_1/below/0.txt")) == b"other"


def test_the_pages_scripts(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both scripts of the page by hand."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    texts = {one.file: one.text for one in blocks(REPOSITORY / "docs" / "batch-inference.md")}
    for name in ("predict.py", "tokenize_all.py"):
        Path(name).write_text(texts[name])
        runpy.run_path(name, run_name="__main__")
    outputs = Client(root=root).stored_trial(1).outputs()
    assert len(outputs.resources) == 29 and "rank_0/000028.pt" in outputs.resources
    assert len([*(tmp_path / "home" / "tokens").glob("*.json")]) == 20


class Stream(IterableDataset[int]):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(range(3))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"dataset": Stream()}, "IterableDataset can't go on"),
        ({"dataset": object()}, "__len__, which object lacks"),
        ({"batch_size": 2, "dataloader_kwargs": {"batch_size": 2}}, "given twice"),
        ({"dataloader_kwargs": {"shuffle": True}}, "must not have 'shuffle'"),
        ({"dataloader_kwargs": {"sampler": [0]}}, "must not have 'sampler'"),
        ({"checkpoint_interval": 0}, "checkpoint_interval must be positive"),
        ({"batch_size": 0}, "positive integer"),
    ],
)
def test_arguments_that_make_no_sense(root: Path, arguments: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        torch_batch_process(**{"batch_processor_cls": Copies, "dataset": range(3), **arguments})
    assert not root.exists()


def test_metrics_that_others_could_have_changed_are_not_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_reachable", lambda path: True)  # pytest's directories are private
    file = tmp_path / _REDUCED
    file.write_bytes(pickle.dumps([[1.0]]))
    file.chmod(0o600)
    assert _read_reduced(file) == ([1.0],)
    file.chmod(0o666)
    with pytest.raises(PermissionError, match="others can change"):
        _read_reduced(file)
