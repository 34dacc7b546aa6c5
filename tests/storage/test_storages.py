"""What every checkpoint storage must do, on disk and on a real S3-speaking server."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from detslurm import storage
from detslurm.errors import InvalidCheckpointException
from detslurm.storage import ObjectStore, SharedFS, Storage, list_resources
from detslurm.storage.shared_fs import check_access
from tests.s3 import s3_storage
from tests.store.faults import refusing


@pytest.fixture(params=["shared_fs", "directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """An empty storage of each type, made from a `checkpoint_storage` section."""
    if request.param == "shared_fs":
        return storage.from_config(
            {"type": "shared_fs", "host_path": str(tmp_path), "storage_path": "ckpts"}
        )
    if request.param == "directory":
        return storage.from_config({"type": "directory", "container_path": str(tmp_path / "dir")})
    return s3_storage(request.getfixturevalue("s3_server"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with nested files and an empty directory."""
    root = tmp_path / "source"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "top").write_text("top")
    (root / "deep" / "er" / "file").write_bytes(b"x" * 100_000)
    return root


ALL = {"deep/": 0, "deep/er/": 0, "deep/er/file": 100_000, "empty/": 0, "top": 3}


def save(store: Storage, source: Path, storage_id: str = "one") -> None:
    """A sealed checkpoint of the whole source."""
    store.begin(storage_id)
    store.put(storage_id, source, ALL)
    store.seal(storage_id, {"steps_completed": 3})


def test_a_file_that_others_have_replaced_is_not_copied(store: Storage, source: Path) -> None:
    """Nor one that they have added; a file system's owners and modes protect without digests."""
    save(store, source)
    digests = store.digests("one")
    if not isinstance(store, ObjectStore):
        assert digests == {}
        return
    assert digests.keys() == {"deep/er/file", "top", "metadata.json"}
    store._fs.pipe_file(store._key("one", "code/model.py"), b"raise SystemExit")
    copy = source.with_name("copy")
    store.get("one", copy, None, digests)
    found = {name for name in list_resources(copy) if not name.endswith("/")}
    assert found == {"deep/er/file", "top", "metadata.json"}
    store._fs.pipe_file(store._key("one", "top"), b"bad")
    with pytest.raises(
        InvalidCheckpointException, match=r"top of checkpoint one .* is not the file"
    ):
        store.get("one", source.with_name("other"), None, digests)
    assert not (source.with_name("other") / "top").exists()


def test_where_nothing_can_be_saved_is_said_at_once(tmp_path: Path) -> None:
    """And nothing is left where it can."""
    good = SharedFS(tmp_path / "ckpts")
    check_access(good)
    assert list(good.base.iterdir()) == []
    (tmp_path / "file").touch()
    wrong = SharedFS(tmp_path / "file" / "ckpts")
    with pytest.raises(NotADirectoryError, match=f"no checkpoint can be saved in {wrong.base}"):
        check_access(wrong)


def test_what_can_not_be_listed_is_no_empty_directory(source: Path, store: Storage) -> None:
    """A file server that fails for a moment, or rights: the upload fails, and loses no files."""
    with refusing(source / "deep"), pytest.raises(PermissionError):
        list_resources(source, follow=True)
    if not isinstance(store, SharedFS):
        return
    store.begin("one")
    store.put("one", source, ALL)
    with refusing(store.staging("one") / "deep"), pytest.raises(PermissionError):
        store.flush("one")


def test_a_link_to_what_is_closed_is_left_out_of_a_copy(source: Path, tmp_path: Path) -> None:
    """Such as that to the code of another user's experiment: whoever reads gets all else."""
    store = SharedFS(tmp_path / "ckpts")
    save(store, source)
    (source.parent / "code").mkdir()
    (link := store.path("one") / "code").symlink_to(source.parent / "code")
    assert "code/" in store.resources("one")
    with refusing(link):
        assert set(store.resources("one")) == {*ALL, "metadata.json"}
        store.get("one", tmp_path / "copy")
    assert set(storage.list_resources(tmp_path / "copy")) == {*ALL, "metadata.json"}


def test_the_round_trip(store: Storage, source: Path, tmp_path: Path) -> None:
    """What was put comes back, empty directories too; metadata and resources agree."""
    store.begin("one")
    store.put("one", source, ALL)
    added = store.seal("one", {"steps_completed": 3})
    assert set(added) == {"metadata.json"}
    assert store.metadata("one") == {"steps_completed": 3}
    assert store.resources("one") == dict(sorted({**ALL, **added}.items()))
    target = tmp_path / "target"
    target.mkdir()
    store.get("one", target)
    assert storage.list_resources(target) == store.resources("one")
    assert (target / "deep" / "er" / "file").read_bytes() == b"x" * 100_000


def test_a_checkpoint_does_not_exist_before_it_is_sealed(store: Storage, source: Path) -> None:
    """Half a checkpoint is none, whoever looks."""
    assert not store.exists("one")
    store.begin("one")
    store.put("one", source, ["top"])
    assert not store.exists("one")
    store.seal("one", None)
    assert store.exists("one")
    assert store.resources("one") == {"top": 3}
    with pytest.raises(FileNotFoundError):
        store.metadata("one")


@pytest.mark.parametrize("call", ["rename", "mkdir"])
def test_a_reply_that_gets_lost_costs_no_checkpoint(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """What a file server has done is done, though the call fails; what it has not done fails."""
    store, real = SharedFS(tmp_path / "ckpts"), getattr(os, call)

    def lost(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise OSError(errno.EEXIST if call == "mkdir" else errno.EIO, "the reply got lost")

    store.base.mkdir()
    monkeypatch.setattr(os, call, lost)
    save(store, source)
    assert store.exists("one") and store.metadata("one") == {"steps_completed": 3}

    def refused(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EIO, "nothing was done")

    monkeypatch.setattr(os, call, refused)
    with pytest.raises(OSError, match="nothing was done"):
        save(store, source, "two")


def test_a_file_that_is_gone_stands_for_no_other(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply got lost, and the repeated request finds nothing: all others go, too."""
    store, real = SharedFS(tmp_path / "ckpts"), os.unlink
    save(store, source)

    def lost(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise FileNotFoundError(errno.ENOENT, "the reply got lost")

    monkeypatch.setattr(os, "unlink", lost)
    store.discard("one")
    assert not list(store.base.iterdir())


def test_discard_removes_sealed_and_unsealed_ones(store: Storage, source: Path) -> None:
    """Others stay; what is missing already is fine."""
    save(store, source, "kept")
    save(store, source, "sealed")
    store.begin("half")
    store.put("half", source, ["top"])
    for storage_id in ("sealed", "half", "never-was"):
        store.discard(storage_id)
        assert not store.exists(storage_id)
        store.discard(storage_id)
    assert store.exists("kept")


def test_delete_by_pattern_returns_what_remains(
    store: Storage, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`**` spans directories, a matched directory goes whole, patterns that lead out do nothing."""
    save(store, source)
    assert set(store.delete("one", ["../**", "/etc/*"])) >= set(ALL)
    assert "leads out" in caplog.text
    remaining = store.delete("one", ["**/f*", "emp*"])
    assert remaining.keys() == {"deep/", "deep/er/", "top", "metadata.json"}
    assert store.resources("one") == remaining
    assert store.delete("one", ["**"]) == {}
    assert not store.exists("one")


def test_get_takes_what_the_selector_takes(store: Storage, source: Path, tmp_path: Path) -> None:
    """A selected file brings its directories, and nothing else comes."""
    save(store, source)
    target = tmp_path / "target"
    target.mkdir()
    store.get("one", target, lambda name: name.endswith("file"))
    assert set(storage.list_resources(target)) == {"deep/", "deep/er/", "deep/er/file"}


def test_what_is_recorded_is_what_was_stored(store: Storage, source: Path) -> None:
    """A file that somebody writes to while others are copied; a directory of which nothing is
    chosen."""
    listed = {"deep/": 0, "deep/er/": 0, "empty/": 0, "top": 3}
    (source / "top").write_text("longer")
    store.begin("one")
    stored = store.put("one", source, listed)
    store.seal("one", None)
    assert stored == {**listed, "top": 6} == store.resources("one")


def test_an_object_that_grows_while_it_is_stored(s3_server: str, source: Path) -> None:
    """The bucket says how much of it there is; and of one that is gone by then."""
    store = s3_storage(s3_server)
    put = store._fs.put

    def growing(paths: list[str], keys: list[str]) -> None:
        with (source / "top").open("a") as top:
            top.write("more")
        put(paths, keys)
        (source / "gone").unlink()

    (source / "gone").write_text("")
    store._fs.put = growing
    store.begin("one")
    assert store.put("one", source, ["top", "gone"]) == {"top": 7, "gone": 0}


def test_an_interrupted_download_leaves_no_file_that_looks_whole(
    s3_server: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries give a large file its size before its content; few are in memory at once."""
    store = s3_storage(s3_server)
    monkeypatch.setattr("detslurm.storage.objects._FILES_AT_ONCE", 1)
    save(store, source)
    get, asked = store._fs.get, []

    def broken(keys: list[str], paths: list[str]) -> None:
        asked.append(len(keys))
        if len(asked) == 2:
            Path(paths[0]).write_bytes(b"\0" * 100_000)
            raise OSError("the connection broke")
        get(keys, paths)

    store._fs.get = broken
    target = tmp_path / "target"
    with pytest.raises(OSError, match="broke"):
        store.get("one", target)
    there = list_resources(target)
    store.get("one", target, lambda name: name not in there)
    assert set(asked) == {1} and len(asked) == 4
    assert (target / "deep/er/file").read_bytes() == b"x" * 100_000
    assert list_resources(target).keys() == {*ALL, "metadata.json"}


def test_a_download_to_the_same_place_disturbs_no_reader(
    store: Storage, source: Path, tmp_path: Path
) -> None:
    """Ranks of several nodes may download to one directory, each when it comes."""
    (source / "deep" / "er" / "file").write_bytes(bytes(30_000_000))
    save(store, source)
    target = tmp_path / "target"
    store.get("one", target)
    seen, again = set[int](), threading.Event()

    def read() -> None:
        while True:
            seen.add((target / "deep" / "er" / "file").stat().st_size)
            if again.is_set():
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(3):
            store.get("one", target)
    finally:
        again.set()
        reader.join()
    assert seen == {30_000_000}
    assert list_resources(target).keys() == {*ALL, "metadata.json"}


def test_objects_that_a_cloud_does_not_delete(s3_server: str, source: Path) -> None:
    """It answers that all is well: they are asked for again, and what stays is no checkpoint."""
    store = s3_storage(s3_server)
    save(store, source)
    remove, stays = store._fs.rm, 6

    def deaf(keys: list[str]) -> None:
        nonlocal stays
        stays -= 1
        if heard := [key for key in keys if stays < 0 or not key.endswith("top")]:
            remove(heard)

    store._fs.rm = deaf
    for act in (lambda: store.delete("one", ["t*"]), lambda: store.discard("one")):
        with pytest.raises(OSError, match="did not delete top"):
            act()
    assert not store.exists("one")
    store.discard("one")
    assert store.resources("one") == {}


def test_put_file_replaces(store: Storage, source: Path, tmp_path: Path) -> None:
    """A file beside the checkpoints can be written again and again."""
    for text in ("first", "second"):
        (source / "top").write_text(text)
        store.put_file(source / "top", "tensorboard/experiment/1/x")
    if isinstance(store, SharedFS):
        assert (store.base / "tensorboard/experiment/1/x").read_text() == "second"
    else:
        assert isinstance(store, ObjectStore)
        assert store._fs.cat_file(f"{store._root}/tensorboard/experiment/1/x") == b"second"


def test_files_beside_the_checkpoints_go_by_folder(store: Storage, source: Path) -> None:
    """All of one folder and nothing of its neighbours, whatever their names begin with."""
    for key in ("1/x", "1/deep/y", "1/[ab]", "11/z"):
        store.put_file(source / "top", f"tensorboard/experiment/{key}")
    for _ in range(2):
        store.remove_files("tensorboard/experiment/1")
    if isinstance(store, SharedFS):
        left = [
            str(path.relative_to(store.base)) for path in store.base.rglob("*") if path.is_file()
        ]
    else:
        assert isinstance(store, ObjectStore)
        store._fs.invalidate_cache()
        left = [name[len(store._root) + 1 :] for name in store._fs.find(store._root)]
    assert left == ["tensorboard/experiment/11/z"]


def test_links_count_as_what_they_lead_to(store: Storage, source: Path, tmp_path: Path) -> None:
    """What comes back does not depend on what lay outside; loops end."""
    (tmp_path / "outside").write_text("outside")
    (source / "link").symlink_to(tmp_path / "outside")
    (source / "shortcut").symlink_to("deep/er")
    (source / "deep" / "loop").symlink_to("..")
    names = storage.list_resources(source, follow=True)
    assert names["link"] == 7 and names["shortcut/file"] == 100_000 and "deep/loop/top" not in names
    store.begin("one")
    store.put("one", source, names)
    store.seal("one", None)
    (tmp_path / "outside").unlink()
    store.get("one", tmp_path / "target")
    assert (tmp_path / "target" / "link").read_text() == "outside"
    assert (tmp_path / "target" / "shortcut" / "file").stat().st_size == 100_000


def test_links_that_lead_nowhere(
    store: Storage, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As `latest -> step_90`, removed since: a disk keeps them, a bucket is without them, and
    neither loses the checkpoint. What is returned is what was stored."""
    (source / "latest").symlink_to("step_90")
    (source / "deep" / "loop").symlink_to("loop")
    names = storage.list_resources(source, follow=True)
    store.begin("one")
    stored = store.put("one", source, names)
    store.seal("one", None)
    assert store.resources("one") == stored
    store.get("one", tmp_path / "target")
    assert storage.list_resources(tmp_path / "target") == stored
    if isinstance(store, SharedFS):
        assert stored == names
        assert (tmp_path / "target" / "latest").readlink() == Path("step_90")
        return
    assert stored == ALL
    for name in ("latest", "deep/loop"):
        said = f"{name} leads nowhere: checkpoint one is without it"
        assert said in caplog.messages


def test_a_file_that_has_gone_is_missed(store: Storage, source: Path) -> None:
    """Unlike a link that leads nowhere: a checkpoint without its weights is none."""
    store.begin("one")
    with pytest.raises(OSError, match="gone"):
        store.put("one", source, [*storage.list_resources(source), "gone"])


def test_what_is_written_in_place_can_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absolute links into the directory still lead there once it has its name, and what is no file
    holds nobody up: a pipe would, who opens it."""
    store = SharedFS(tmp_path)
    store.begin("one")
    (deep := store.staging("one") / "deep").mkdir()
    (deep / "step-1").write_text("weights")
    (deep / "latest").symlink_to(deep / "step-1")
    (deep / "up").symlink_to(deep.parent, target_is_directory=True)
    (deep / "away").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(deep / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(deep)  # for a short path
        server.bind("socket")
    found = store.flush("one")
    store.seal("one", {})
    assert set(found) == {"deep/", "deep/step-1", "deep/latest", "deep/up/", "deep/away"}
    sealed = store.path("one") / "deep"
    assert (sealed / "latest").read_text() == "weights"
    assert (sealed / "up" / "metadata.json").exists()
    assert (sealed / "away").readlink() == tmp_path / "elsewhere"
    assert {path.name for path in sealed.iterdir()} == {"step-1", "latest", "up", "away"}


def test_pipes_are_not_copied(source: Path) -> None:
    """Nor waited for."""
    os.mkfifo(source / "pipe")
    assert list_resources(source, follow=True) == ALL


def test_names_that_look_like_patterns(store: Storage, tmp_path: Path) -> None:
    """Only what is named is removed, and all of it."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("a*.bin", "ab.bin", "layer[0].pt", "layer0.pt", "what?"):
        (source / name).write_text(name)
    store.begin("one")
    store.put("one", source, storage.list_resources(source))
    store.seal("one", None)
    remaining = {"ab.bin", "layer[0].pt", "layer0.pt", "what?"}
    assert store.delete("one", ["a[*].bin"]).keys() == remaining
    assert store.resources("one").keys() == remaining
    store.discard("one")
    assert not store.exists("one")


def test_a_file_that_could_not_be_stored_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over quota, each attempt would leave a part that TensorBoard takes for a file of its own."""

    def full(source: Path, target: Path) -> None:
        Path(target).write_text("a part")
        raise OSError(errno.EDQUOT, "over quota")

    monkeypatch.setattr(shutil, "copyfile", full)
    store = SharedFS(tmp_path / "base")
    with pytest.raises(OSError, match="over quota"):
        store.put_file(Path(__file__), "tensorboard/experiment/1/x")
    assert [path for path in store.base.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "../x", "tensorboard"])
def test_ids_that_are_paths_are_refused(store: Storage, bad: str) -> None:
    """No id leads out of the storage or to what is not a checkpoint."""
    for act in (store.begin, store.exists, store.discard):
        with pytest.raises(ValueError, match="not a storage id"):
            act(bad)


class TestForms:
    """Sections and URIs."""

    @pytest.mark.parametrize(
        ("uri", "where"),
        [
            ("/a/b", "/a/b"),
            ("file:///a/b", "/a/b"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/some/prefix/", "s3://bucket/some/prefix"),
            ("gs://bucket/prefix", "gs://bucket/prefix"),
        ],
    )
    def test_uris(self, uri: str, where: str) -> None:
        """Each names its place."""
        assert storage.from_config(storage.section_of(uri)).where == where

    @pytest.mark.parametrize(
        "uri",
        [
            "s3://",
            "s3:///p",
            "file://host/a",
            "s3://b/p?x=1",
            "gs://b#f",
            "azure://c/p",
            "hdfs://x/y",
        ],
    )
    def test_other_uris_are_refused(self, uri: str) -> None:
        """Parameters, hosts of files, missing buckets and other clouds."""
        with pytest.raises(ValueError, match="checkpoint_storage"):
            storage.from_config(storage.section_of(uri))

    def test_clouds_by_section(self) -> None:
        """Making one opens nothing and shows no secret."""
        gcs = storage.from_config({"type": "gcs", "bucket": "b", "prefix": "p"})
        azure = storage.from_config(
            {"type": "azure", "container": "c", "connection_string": "AccountKey=secret"}
        )
        assert (gcs.where, azure.where) == ("gs://b/p", "abfs://c")

    def test_a_missing_package_is_named_with_the_remedy(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The error comes with the command that helps."""
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        pytest.importorskip("fsspec")
        with pytest.raises(RuntimeError, match=r"pip install 'detslurm\[cloud\]'"):
            storage.from_config(storage.section_of("gs://b/p")).exists("x")
