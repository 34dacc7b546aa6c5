"""Checkpoints that many ranks save and restore together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from detslurm import errors
from detslurm.core import CheckpointContext, DistributedContext, DownloadMode
from detslurm.core._checkpoint_records import CheckpointRecords
from detslurm.storage import Resources, SharedFS, Storage
from tests.s3 import s3_storage

from .ranks import on_ranks

STEP = {"steps_completed": 7}


class Notes:
    """Keeps what is recorded, as a run's log would."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def commit(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    record = commit

    def close(self) -> None:
        pass

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["t"] == kind]


class Trial:
    """A trial of several ranks whose chief records."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.notes = Notes()
        self.deleted: list[str] = []

    def _delete(self, storage_id: str) -> None:
        self.deleted.append(storage_id)

    def _digests(self, storage_id: str) -> dict[str, str] | None:
        found = (one for one in self.notes.of("checkpoint") if one["uuid"] == storage_id)
        return next((one.get("digests") for one in found), None)

    def run(
        self,
        size: int,
        body: Callable[[CheckpointContext, DistributedContext], Any],
        nodes: int = 1,
    ) -> list[Any]:
        """What each rank returned or raised."""

        def rank(dist: DistributedContext) -> Any:
            recorder: Any = self.notes if dist.rank == 0 else Notes()
            records = CheckpointRecords(recorder, needs_steps=True)
            records.deleted = self._delete  # type: ignore[method-assign]
            records.digests = self._digests  # type: ignore[method-assign]
            return body(CheckpointContext(dist, self.storage, records), dist)

        return on_ranks(size, rank, nodes)


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """A trial on a shared file system."""
    return Trial(SharedFS(tmp_path / "storage"))


def write(folder: Path, **files: str) -> Path:
    """A directory with these files (two underscores stand for a slash)."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def kinds(outcomes: list[Any]) -> list[type]:
    """The types of what ranks returned or raised."""
    return [type(outcome) for outcome in outcomes]


def stored(trial: Trial, storage_id: str) -> dict[str, str]:
    """The files of a checkpoint but its metadata, with their contents."""
    root = trial.storage.direct(storage_id)
    assert root is not None
    return {
        str(path.relative_to(root)): path.read_text()
        for path in root.rglob("*")
        if path.is_file() and path.name != "metadata.json"
    }


def nothing_is_left(trial: Trial) -> bool:
    """No checkpoint was recorded, and the storage holds no file."""
    base = Path(trial.storage.where)
    return not trial.notes.of("checkpoint") and not (base.exists() and any(base.iterdir()))


class TestUpload:
    """upload(shard=True)."""

    def test_a_checkpoint_is_the_union_of_all_ranks(self, trial: Trial, tmp_path: Path) -> None:
        """Overlapping equal files are stored once; metadata merges; the chief commits once."""

        def body(context: CheckpointContext, dist: DistributedContext) -> str:
            own = {f"d__{dist.rank}": str(dist.rank), "common": "same"}
            folder = None if dist.rank == 2 else write(tmp_path / f"r{dist.rank}", **own)
            return context.upload(folder, {**STEP, "by": {str(dist.rank): True}}, shard=True)

        ids = trial.run(4, body, nodes=2)
        (record,) = trial.notes.of("checkpoint")
        assert ids == [record["uuid"]] * 4
        assert stored(trial, ids[0]) == {"d/0": "0", "d/1": "1", "d/3": "3", "common": "same"}
        metadata = {**STEP, "by": {"0": True, "1": True, "2": True, "3": True}}
        assert trial.storage.metadata(ids[0]) == metadata
        assert (record["steps"], record["metadata"]) == (7, metadata)
        on_disk = trial.storage.resources(ids[0])
        assert record["resources"] == on_disk
        assert set(on_disk) == {"d/", "d/0", "d/1", "d/3", "common", "metadata.json"}

    def test_conflicting_files_are_refused_before_anything_is_copied(
        self, trial: Trial, tmp_path: Path
    ) -> None:
        """Every rank raises; the chief says which file of which ranks."""

        def body(context: CheckpointContext, dist: DistributedContext) -> str:
            folder = write(
                tmp_path / f"r{dist.rank}", model=f"{dist.rank}", **{f"o{dist.rank}": ""}
            )
            return context.upload(folder, STEP, shard=True)

        outcomes = trial.run(3, body)
        assert kinds(outcomes) == [RuntimeError] * 3
        assert "model uploaded by ranks [0, 1, 2]" in str(outcomes[0])
        assert "refusing to upload with files conflicts" in str(outcomes[2])
        assert "\n" not in str(outcomes[2])
        assert nothing_is_left(trial) and not trial.notes.records

    def test_metadata_is_refused_before_anything_is_copied(
        self, trial: Trial, tmp_path: Path
    ) -> None:
        """A conflict is a RuntimeError, missing steps a ValueError, on every rank."""
        folder = write(tmp_path / "f", model="x")

        def conflict(context: CheckpointContext, dist: DistributedContext) -> str:
            return context.upload(folder, {**STEP, "a": {"c": dist.rank}}, shard=True)

        def missing(context: CheckpointContext, dist: DistributedContext) -> str:
            return context.upload(folder, {"steps_completed": "7"}, shard=True)

        outcomes = trial.run(2, conflict)
        assert kinds(outcomes) == [RuntimeError] * 2
        assert "/a/c uploaded by ranks [0, 1]" in str(outcomes[0])
        assert kinds(trial.run(2, missing)) == [ValueError] * 2
        assert nothing_is_left(trial) and not trial.notes.records

    def test_selectors_choose_each_ranks_part_of_one_directory(
        self, trial: Trial, tmp_path: Path
    ) -> None:
        """Each rank's selection is stored, with the directories above it."""
        folder = write(tmp_path / "f", d__0="0", d__1="1", d__2="2")

        def body(context: CheckpointContext, dist: DistributedContext) -> str:
            mine = f"d/{dist.rank}"
            return context.upload(folder, STEP, shard=True, selector=lambda name: name == mine)

        ids = trial.run(2, body)
        assert stored(trial, ids[0]) == {"d/0": "0", "d/1": "1"}

    def test_no_directory_at_all_is_refused_on_all_ranks(self, trial: Trial) -> None:
        """So are a selector without a directory, and a path that is no directory."""

        def none(context: CheckpointContext, dist: DistributedContext) -> str:
            return context.upload(None, shard=True)

        def one(context: CheckpointContext, dist: DistributedContext) -> str:
            selector = (lambda _: True) if dist.rank == 1 else None
            return context.upload(None, STEP, shard=True, selector=selector)

        def missing(context: CheckpointContext, dist: DistributedContext) -> str:
            return context.upload("/no/such/directory", STEP, shard=True)

        for outcome in trial.run(2, none):
            assert isinstance(outcome, RuntimeError) and "at least one rank" in str(outcome)
        for outcome in trial.run(2, one):
            assert isinstance(outcome, RuntimeError)
            assert "has to be provided if selector is not None" in str(outcome)
        assert kinds(trial.run(2, missing)) == [ValueError] * 2

    def test_a_rank_that_fails_to_copy_fails_all(self, trial: Trial, tmp_path: Path) -> None:
        """The others learn which rank failed, and the files of all are removed."""

        def body(context: CheckpointContext, dist: DistributedContext) -> str:
            folder = write(tmp_path / f"r{dist.rank}", **{f"f{dist.rank}": "x"})
            if dist.rank == 1:
                trial.storage.put = _full  # type: ignore[assignment, method-assign]
            return context.upload(folder, STEP, shard=True)

        outcomes = trial.run(2, body)
        assert all(isinstance(outcome, OSError) for outcome in outcomes)
        assert "disk is full" in str(outcomes[0])
        assert nothing_is_left(trial)

    def test_workers_must_not_upload_alone(self, trial: Trial, tmp_path: Path) -> None:
        """Without shard only the chief may; the message names the rank."""

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            if dist.rank == 1:
                with pytest.raises(RuntimeError, match=r"upload\(shard=False\).*rank=1"):
                    context.upload(tmp_path, STEP)
                with pytest.raises(RuntimeError, match=r"store_path\(shard=False\).*rank=1"):
                    context.store_path(STEP).__enter__()

        assert trial.run(2, body) == [None, None]


def _full(*_: Any) -> None:
    raise OSError("the disk is full")


class TestStorePath:
    """store_path(shard=True)."""

    def test_all_ranks_share_the_directory(self, trial: Trial) -> None:
        """What each wrote is in the one checkpoint, with merged metadata."""

        def body(context: CheckpointContext, dist: DistributedContext) -> tuple[Path, str]:
            metadata = {**STEP, f"rank{dist.rank}": 1}
            with context.store_path(metadata, shard=True) as (path, storage_id):
                write(path, **{f"d__{dist.rank}": "x"})
            return path, storage_id

        outcomes = trial.run(4, body, nodes=2)
        assert len(set(outcomes)) == 1
        storage_id = outcomes[0][1]
        assert set(stored(trial, storage_id)) == {"d/0", "d/1", "d/2", "d/3"}
        (record,) = trial.notes.of("checkpoint")
        assert set(record["metadata"]) == {"steps_completed", "rank0", "rank1", "rank2", "rank3"}
        assert record["resources"] == trial.storage.resources(storage_id)

    @pytest.mark.parametrize("guilty", [0, 1])
    def test_a_body_that_raises_on_one_rank_leaves_nothing(self, trial: Trial, guilty: int) -> None:
        """It raises its own error, the others say what happened, nobody hangs."""

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            with context.store_path(STEP, shard=True) as (path, _):
                write(path, **{f"f{dist.rank}": "x"})
                if dist.rank == guilty:
                    raise ZeroDivisionError("no luck")

        outcomes = trial.run(2, body)
        assert isinstance(outcomes[guilty], ZeroDivisionError)
        assert isinstance(outcomes[1 - guilty], RuntimeError)
        assert "ZeroDivisionError: no luck" in str(outcomes[1 - guilty])
        assert nothing_is_left(trial)

    def test_metadata_is_checked_before_the_body_runs(self, trial: Trial) -> None:
        """No rank enters the block when the merged metadata lacks its steps."""
        entered = []

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            with context.store_path({}, shard=True):
                entered.append(dist.rank)

        assert kinds(trial.run(2, body)) == [ValueError] * 2
        assert entered == []


class TestRestore:
    """download and restore_path of several ranks."""

    @pytest.fixture
    def storage_id(self, trial: Trial, tmp_path: Path) -> str:
        """A checkpoint of files a, b, c."""
        folder = write(tmp_path / "source", a="a", b="b", d__c="c")
        (saved,) = trial.run(1, lambda context, _: context.upload(folder, STEP))
        assert isinstance(saved, str)
        return saved

    def test_selectors_of_the_ranks_of_a_node_add_up(
        self, trial: Trial, tmp_path: Path, storage_id: str
    ) -> None:
        """One copy holds what any local rank wants; other nodes choose for themselves."""

        def body(context: CheckpointContext, dist: DistributedContext) -> set[str]:
            target = tmp_path / f"node{dist.cross_rank}"
            mine = ["a", "d/c", "b", "b"][dist.rank]
            context.download(storage_id, target, selector=lambda name: name == mine)
            return {str(p.relative_to(target)) for p in target.rglob("*") if p.is_file()}

        assert trial.run(4, body, nodes=2) == [{"a", "d/c"}, {"a", "d/c"}, {"b"}, {"b"}]

    def test_a_rank_without_selector_means_everything(
        self, trial: Trial, tmp_path: Path, storage_id: str
    ) -> None:
        """What the others select makes no difference then."""

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            selector = (lambda name: name == "a") if dist.rank == 0 else None
            context.download(storage_id, tmp_path / "target", selector=selector)

        trial.run(2, body)
        found = {p.name for p in (tmp_path / "target").rglob("*") if p.is_file()}
        assert found == {"a", "b", "c", "metadata.json"}

    def test_without_sharing_each_rank_is_alone(
        self, trial: Trial, tmp_path: Path, storage_id: str
    ) -> None:
        """Ranks that do not call at all are no trouble."""

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            if dist.rank == 1:
                context.download(storage_id, tmp_path / "t", DownloadMode.NoSharedDownload)

        assert trial.run(2, body) == [None, None]
        assert (tmp_path / "t" / "d" / "c").read_text() == "c"

    def test_an_unknown_checkpoint_raises_on_every_rank(self, trial: Trial, tmp_path: Path) -> None:
        """The local chief looks; nobody waits for it in vain."""

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            context.download("no-such-id", tmp_path / "t")

        assert kinds(trial.run(2, body)) == [errors.CheckpointNotFound] * 2

    def test_restore_path_gives_the_stored_directory(
        self, trial: Trial, storage_id: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """No copy on a shared file system; a selector is ignored with a warning."""

        def body(context: CheckpointContext, dist: DistributedContext) -> Path:
            with context.restore_path(storage_id, selector=lambda _: False) as path:
                assert (path / "a").read_text() == "a"
                return path

        assert trial.run(2, body) == [trial.storage.direct(storage_id)] * 2
        assert "selector ignored" in caplog.text

    def test_a_worker_may_delete(self, trial: Trial, storage_id: str) -> None:
        """Its deletion is recorded as a fact of the experiment."""

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            if dist.rank == 1:
                context.delete(storage_id)

        trial.run(2, body)
        assert trial.deleted == [storage_id]
        assert not trial.storage.exists(storage_id)


class TestInABucket:
    """The same over a server that speaks S3, where files must be brought and fetched."""

    @pytest.fixture
    def trial(self, s3_server: str) -> Trial:
        """A trial that stores to S3."""
        return Trial(s3_storage(s3_server))

    def test_the_ranks_of_a_node_share_what_they_store_and_restore(self, trial: Trial) -> None:
        """One directory per node on both ways, removed afterwards; equal files stored once."""

        def save(context: CheckpointContext, dist: DistributedContext) -> tuple[Path, str]:
            with context.store_path(STEP, shard=True) as (path, storage_id):
                write(path, **{f"d__{dist.rank}": "x", f"node{dist.cross_rank}": "", "same": "s"})
            return path, storage_id

        saved = trial.run(4, save, nodes=2)
        assert len({path for path, _ in saved}) == 2
        (storage_id,) = {storage_id for _, storage_id in saved}

        def restore(context: CheckpointContext, dist: DistributedContext) -> tuple[Path, set[str]]:
            wanted = f"d/{dist.rank}"
            with context.restore_path(storage_id, selector=lambda name: name == wanted) as path:
                return path, {p.name for p in path.rglob("*") if p.is_file()}

        restored = trial.run(4, restore, nodes=2)
        assert [names for _, names in restored] == [{"0", "1"}] * 2 + [{"2", "3"}] * 2
        assert not any(path.exists() for path, _ in saved + restored)
        (record,) = trial.notes.of("checkpoint")
        assert record["resources"] == trial.storage.resources(storage_id)
        assert {"d/0", "d/3", "node0", "node1", "same"} <= set(record["resources"])
        assert set(record["digests"]) == {n for n in record["resources"] if not n.endswith("/")}

    def test_one_rank_alone(self, trial: Trial, tmp_path: Path) -> None:
        """store_path, upload, metadata, restore and delete without peers."""

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            with context.store_path(STEP) as (path, first):
                write(path, d__a="a")
            second = context.upload(write(tmp_path / "s", b="b"), STEP)
            assert context.get_metadata(first) == STEP
            with context.restore_path(first) as found, context.restore_path(second) as other:
                assert (found / "d" / "a").read_text() == "a"
                assert (other / "b").read_text() == "b"
            context.delete(first)
            with pytest.raises(errors.CheckpointNotFound):
                context.restore_path(first).__enter__()

        assert trial.run(1, body) == [None]

    def test_a_link_that_leads_nowhere_is_in_no_record(self, trial: Trial, tmp_path: Path) -> None:
        """Nor in the bucket; all else is, whether ranks write to one directory or each to its own,
        where both have the link."""

        def body(context: CheckpointContext, dist: DistributedContext) -> list[str]:
            def fill(path: Path, name: str) -> Path:
                write(path, **{name: "x"})
                with contextlib.suppress(FileExistsError):
                    (path / "latest").symlink_to("step_90")
                return path

            with context.store_path(STEP, shard=True) as (path, first):
                fill(path, f"rank{dist.rank}")
            own = fill(tmp_path / str(dist.rank), f"rank{dist.rank}")
            return [first, context.upload(own, STEP, shard=True)]

        assert len({str(ids) for ids in trial.run(2, body)}) == 1
        records = trial.notes.of("checkpoint")
        for record in records:
            assert set(record["resources"]) == {"rank0", "rank1", "metadata.json"}
            assert record["resources"] == trial.storage.resources(record["uuid"])
        assert len(records) == 2

    def test_a_body_that_raises_leaves_nothing(self, trial: Trial) -> None:
        """Neither objects in the bucket nor a directory on the node."""
        seen = []

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            with context.store_path(STEP, shard=True) as (path, storage_id):
                seen.append((path, storage_id))
                write(path, half="x")
                raise ZeroDivisionError

        assert kinds(trial.run(2, body)) == [ZeroDivisionError] * 2
        for path, storage_id in seen:
            assert not path.exists()
            assert trial.storage.resources(storage_id) == {}

    def test_what_is_stored_ahead_is_not_stored_again(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Unless it was changed since."""
        put, names = trial.storage.put, []

        def observed(storage_id: str, source: Path, chosen: Iterable[str]) -> Resources:
            names.extend(chosen := list(chosen))
            return put(storage_id, source, chosen)

        monkeypatch.setattr(trial.storage, "put", observed)

        def body(context: CheckpointContext, dist: DistributedContext) -> str:
            with context._begun(STEP) as save:
                write(save.path, **{f"d__{dist.rank}": "x", f"small{dist.rank}": ""})
                save.store_ahead(save.path / "d" / str(dist.rank))
                if dist.rank == 1:
                    write(save.path, d__1="changed")
                dist.allgather(None)
                save.divide()
                save.seal(save.store)
            return save.storage_id

        (storage_id,) = set(trial.run(2, body))
        files = [name for name in names if not name.endswith("/")]
        assert sorted(files) == ["d/0", "d/1", "d/1", "small0", "small1"]
        trial.storage.get(storage_id, tmp_path)
        assert [(tmp_path / "d" / name).read_text() for name in "01"] == ["x", "changed"]
        (record,) = trial.notes.of("checkpoint")
        assert record["resources"] == trial.storage.resources(storage_id)

    def test_what_a_rank_gives_up_waits_for_nobody(self, trial: Trial) -> None:
        """Of a checkpoint that is written in steps nothing is left when both ranks have gone."""
        seen, gone = [], threading.Event()

        def body(context: CheckpointContext, dist: DistributedContext) -> None:
            with context._begun(STEP) as save:
                seen.append(save)
                write(save.path, **{f"f{dist.rank}": "x"})
                save.divide()
                save.store()
                if dist.rank == 0:
                    assert gone.wait(60)
                raise ZeroDivisionError

        def leaving(context: CheckpointContext, dist: DistributedContext) -> None:
            try:
                body(context, dist)
            finally:
                gone.set()

        assert kinds(trial.run(2, leaving)) == [ZeroDivisionError] * 2
        for save in seen:
            assert not save.path.exists()
            assert trial.storage.resources(save.storage_id) == {}
        assert not trial.notes.of("checkpoint")


def test_killed_in_the_middle_of_store_path(tmp_path: Path) -> None:
    """A killed process leaves no checkpoint: none is listed, none can be restored."""
    script = (
        "import os, signal, sys\n"
        "from detslurm import core\n"
        "with core.init(checkpoint_storage=sys.argv[1]) as context:\n"
        "    with context.checkpoint.store_path({'steps_completed': 1}) as (path, uuid):\n"
        "        (path / 'half').write_text('x')\n"
        "        print(uuid, flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "DETSLURM_ROOT": str(tmp_path / "root")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "storage")],
        capture_output=True,
        text=True,
        env=env,
    )
    assert done.returncode == -signal.SIGKILL
    storage = SharedFS(tmp_path / "storage")
    assert not storage.exists(done.stdout.strip())
    trial = Trial(storage)
    (outcome,) = trial.run(
        1, lambda context, _: context.download(done.stdout.strip(), tmp_path / "target")
    )
    assert isinstance(outcome, errors.CheckpointNotFound)
