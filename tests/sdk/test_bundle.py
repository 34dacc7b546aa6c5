"""Experiments from one store to another as one file, which may come from anybody."""

from __future__ import annotations

import filecmp
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import msgspec
import pytest

from detslurm.sdk import BundleError, Client
from detslurm.sdk.bundle import importing
from detslurm.searcher import Search
from detslurm.storage import from_config, list_resources
from detslurm.store import EventLog, ExperimentDir, fold_experiment, fs, trial_metrics
from detslurm.store.artifacts import Artifact, ArtifactLog, read_artifacts
from detslurm.store.facts import FactLog
from detslurm.store.history import read_continued
from detslurm.store.records import CheckpointFilesRemoved
from detslurm.store.search_records import end_search
from tests.cluster.namespaces import may_unshare
from tests.sdk.scenes import Scene

KEPT, OTHER = str(uuid.uuid4()), str(uuid.uuid4())
MUTATIONS = {"open", "os.mkdir", "os.rename", "os.link", "os.remove"}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "here" / "store")


@pytest.fixture
def other(tmp_path: Path) -> Client:
    """The client of another site's store, which has an experiment of its own."""
    there = Scene(tmp_path / "there" / "store")
    there.run(there.experiment(3, job="9"), losses=[1.0], end="completed")
    return there.client


@pytest.fixture
def number(scene: Scene) -> int:
    """A finished grid: a trial of two runs with two checkpoints, another that was killed."""
    experiment = scene.experiment(2)
    scene.run(experiment, 0, losses=[3.0, 2.0], checkpoint=KEPT, end="restart")
    resume = {"uuid": KEPT, "steps": 2}
    scene.run(experiment, 0, losses=[1.0, float("nan")], checkpoint=OTHER, end="completed",
              resume=resume, log=["0: it trains"])  # fmt: skip
    scene.run(experiment, 1, losses=[5.0], end="killed")
    (experiment.code / "run.sh").write_text("true\n")
    (experiment.code / "run.sh").chmod(0o755)
    (experiment.code / "empty").mkdir()
    scene.client.stored(experiment.id).set_labels(["a", "b"])
    scene.client.stored(experiment.id).kill()
    return experiment.id


def curve(client: Client, number: int) -> list[Any]:
    trials = client.experiment(number).trials()
    return [(repr(trial_metrics(trial.directory)), trial.state) for trial in trials]


def test_it_arrives_as_it_was(scene: Scene, other: Client, number: int, tmp_path: Path) -> None:
    """With ids of its own: states, curves, logs, code, the checkpoint that came along, byte for
    byte; without the secret and without the other checkpoint."""
    image = Artifact(name="x", steps=1, kind="image", media="png", data=b"\x89PNG")
    log = ArtifactLog(scene.store.experiment(number).trial(1).path, 2)
    log.add(image)
    log.close()
    file = tmp_path / "a.tar.gz"
    made = scene.client.experiment(number).bundle(file, checkpoints="latest")
    assert made.checkpoints == (OTHER,) and made.masked == ("data.secrets.token",)
    assert b"hush" not in b"".join(m for m in contents(file).values())
    seen: list[tuple[int, int]] = []
    done = other.import_bundle(file, progress=lambda *now: seen.append(now))
    assert seen == sorted(seen) and {whole for _, whole in seen} == {seen[-1][0]} != {0}
    assert (done.experiment_id, done.was, done.owner, done.trials) == (2, number, "alice", 2)
    old, new = scene.client.experiment(number).view, other.experiment(2).view
    assert (new.state, new.labels, new.best_value) == (old.state, old.labels, old.best_value)
    assert [trial.id for trial in new.trials] == [4, 5]
    assert new.trial_states == old.trial_states and new.created == old.created
    assert curve(other, 2) == curve(scene.client, number)
    there, here = other.store.experiment(2), scene.store.experiment(number)
    assert there.created().imported == f"experiment {number} of alice"
    assert (there.trial(4).log_path(2)).read_text() == here.trial(1).log_path(2).read_text()
    assert read_artifacts(there.trial(4).path) == {"x": [image]}
    assert os.access(there.code / "run.sh", os.X_OK) and (there.code / "empty").is_dir()
    (checkpoint,) = (c for c in other.trial(4).view.checkpoints if c.state == "COMPLETED")
    assert (checkpoint.uuid,) == done.checkpoints and checkpoint.uuid != OTHER
    assert [c.state for c in other.trial(4).view.checkpoints] == ["DELETED", "COMPLETED"]
    config = there.config()
    storage = from_config(config["checkpoint_storage"]).direct(checkpoint.uuid)
    assert storage is not None and (storage / "weights").read_text() == "12345"
    assert storage.is_relative_to(other.store.path)
    assert config["data"]["secrets"]["token"] == "********"
    assert config["hyperparameters"] == here.config()["hyperparameters"]

    again = other.import_bundle(file)
    assert again.experiment_id == 3 and again.checkpoints != done.checkpoints
    other.experiment(3).delete()
    assert not other.store.experiment(3).trial(6).path.exists()
    assert storage.is_dir() and other.trial(4).view.latest_checkpoint is not None


def test_long_logs_take_no_memory(scene: Scene, other: Client, number: int, tmp_path: Path) -> None:
    """They are copied a piece at a time, as all that a trial has recorded."""
    file, source = tmp_path / "a.tar", scene.client.trial(1).directory.log_path(2)
    with source.open("ab") as log:
        for _ in range(32):
            log.write(b"it trains and trains and trains\n" * (1 << 15))
    scene.client.experiment(number).bundle(file)
    tracemalloc.start()
    try:
        done = other.import_bundle(file)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < source.stat().st_size / 4
    first = other.store.experiment(done.experiment_id).created().first_trial
    assert filecmp.cmp(other.trial(first).directory.log_path(2), source, shallow=False)


def test_numbers_that_json_lacks_arrive(
    scene: Scene, other: Client, number: int, tmp_path: Path
) -> None:
    """In metadata and in what a search has decided; a bundle without them is read as well."""
    scene.client.checkpoint(OTHER).add_metadata(
        {"val": float("nan"), "best": float("inf"), "$r": 1}
    )
    log = FactLog(scene.store.experiment(number).search)
    fs.claim_directory(log.path)
    log.put(1, {"e": "validated", "metric": float("nan"), "least": float("-inf")})
    file = tmp_path / "a.tar"
    scene.client.experiment(number).bundle(file, checkpoints="latest")
    done = other.import_bundle(file)
    found = other.checkpoint(done.checkpoints[0]).metadata
    assert repr(found) == "{'val': nan, 'best': inf, '$r': 1}"
    (event,) = FactLog(other.store.experiment(done.experiment_id).search).facts()
    assert repr((event["metric"], event["least"])) == "(nan, -inf)"
    files = contents(file)
    plain = json.loads(files[FACTS].replace(b'{"$float":"nan"}', b"null"))
    old = packed(tmp_path / "old.tar", described(files, FACTS, msgspec.json.encode(plain)))
    assert other.checkpoint(other.import_bundle(old).checkpoints[0]).metadata["val"] is None


def test_a_damaged_checkpoint_is_refused(scene: Scene, number: int, tmp_path: Path) -> None:
    """Before anything is written: a bundle may be the last copy."""
    (scene.checkpoints / OTHER / "weights").unlink()
    experiment, file = scene.client.experiment(number), tmp_path / "a.tar"
    with pytest.raises(BundleError, match=f"{OTHER} is damaged, missing: weights"):
        experiment.bundle(file, checkpoints="latest")
    assert not list(tmp_path.glob("*a.tar*"))
    assert experiment.bundle(file, checkpoints="none").checkpoints == ()


def test_of_a_store_that_is_read_only(scene: Scene, number: int, tmp_path: Path) -> None:
    """Projects end, and their file systems are frozen before they are removed."""
    if not may_unshare():
        pytest.skip("a read-only file system: only root can mount one")
    subprocess.run(["mount", "--bind", scene.root, scene.root], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", scene.root], check=True)
        made = Client(scene.root).experiment(number).bundle(tmp_path / "a.tar", checkpoints="all")
        assert set(made.checkpoints) == {KEPT, OTHER}
    finally:
        subprocess.run(["umount", "--lazy", scene.root], check=True)


def test_a_link_to_a_file_arrives_as_a_file(
    scene: Scene, other: Client, number: int, tmp_path: Path
) -> None:
    """Within the checkpoint or out of it; a link that leads nowhere is left out."""
    folder, elsewhere = scene.checkpoints / OTHER, tmp_path / "data"
    elsewhere.write_text("123")
    (folder / "last").symlink_to("weights")
    (folder / os.fsdecode(b"caf\xe9")).symlink_to("weights")
    (folder / "data").symlink_to(elsewhere)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    recorded = list_resources(folder)
    scene.store.experiment(number).append(CheckpointFilesRemoved(uuid=OTHER, resources=recorded))
    scene.client.experiment(number).bundle(tmp_path / "a.tar", checkpoints="latest")
    (uuid,) = other.import_bundle(tmp_path / "a.tar").checkpoints
    there = other.checkpoint(uuid)
    assert there.resources == {"weights": 5, "last": 5, "caf\\udce9": 5, "data": 3}
    assert (there.verify(), there.state) == (None, "COMPLETED")
    assert (there.download(tmp_path / "copy") / "last").read_text() == "12345"
    here = scene.client.checkpoint(OTHER).resources
    assert (here["last"], here["data"]) == (recorded["last"], recorded["data"])


def test_what_lies_in_the_code(scene: Scene, other: Client, number: int, tmp_path: Path) -> None:
    """Files of any name arrive; pipes, and links that lead nowhere, do not."""
    code, name = scene.store.experiment(number).code, os.fsdecode(b"caf\xe9.py")
    (code / name).write_text("x = 1")
    (code / "gone").symlink_to("/nowhere/x")
    os.mkfifo(code / "pipe")
    scene.client.experiment(number).bundle(tmp_path / "a.tar.gz", checkpoints="none")
    done = other.import_bundle(tmp_path / "a.tar.gz")
    there = other.store.experiment(done.experiment_id).code
    assert {path.name for path in there.iterdir()} == {name, "empty", "run.sh", "train.py"}
    assert (there / name).read_text() == "x = 1"


def test_in_a_storage_that_has_the_original(scene: Scene, number: int, tmp_path: Path) -> None:
    """No id is shared, not even of checkpoints that did not come along: who deletes the copy, or
    collects its garbage, touches nothing of the original."""
    file = tmp_path / "a.tar"
    scene.client.experiment(number).bundle(file, checkpoints="latest")
    done = scene.client.import_bundle(file)
    copied = scene.client.experiment(done.experiment_id)
    uuids = {c.uuid for trial in copied.trials() for c in trial.view.checkpoints}
    assert len(uuids) == 2 and uuids.isdisjoint({KEPT, OTHER})
    copied.delete()
    found = sorted(path.name for path in scene.checkpoints.iterdir())
    assert found == sorted([KEPT, OTHER])


def _line(raw: bytes) -> bytes:
    return b"%08x %b\n" % (crc32(raw), raw)


def _record(uuid: str) -> bytes:
    text = f'{{"t":"checkpoint","uuid":"{uuid}","steps":1,"resources":{{}},"metadata":{{}}}}'
    return text.encode()


@pytest.mark.parametrize(
    "line",
    [
        b'[{"t":"metrics","group":"training","steps":9,"metrics":{"a":1e999}},'
        + _record(KEPT)
        + b"]",
        _record(KEPT.replace("-", "\\u002d")),
        _record(f"\\u{ord(KEPT[0]):04x}{KEPT[1:]}"),
        _record(KEPT).replace(b"checkpoint", b"\\u0063heckpoint"),
        b'{"t":"storage","storage":{"type":"directory","container_path":"/victim"}}',
    ],
)
def test_a_hostile_line_names_no_checkpoint_and_no_place_of_others(
    scene: Scene, number: int, tmp_path: Path, line: bytes
) -> None:
    """However it is written: who deletes the copy deletes nothing else."""
    file = tmp_path / "a.tar"
    scene.client.experiment(number).bundle(file, checkpoints="latest")
    name = "trials/0/run-2.jsonl"
    files = contents(file)
    bent = packed(tmp_path / "b.tar", described(files, name, _line(line) + files[name]))
    copied = scene.client.experiment(scene.client.import_bundle(bent).experiment_id)
    views = [trial.view for trial in copied.trials()]
    assert KEPT not in {one.uuid for view in views for one in view.checkpoints}
    assert "/victim" not in str([view.storages for view in views])
    copied.delete()
    assert KEPT in {path.name for path in scene.checkpoints.iterdir()}


def test_deleting_a_copy_spares_the_tensorboard_files_of_the_original(
    scene: Scene, other: Client, number: int, tmp_path: Path
) -> None:
    """In a storage outside of both stores they lie under the time at which it was created."""
    from detslurm.storage.interface import tensorboard_folder

    scene.client.experiment(number).bundle(tmp_path / "a.tar", checkpoints="latest")
    copy = other.store.experiment(other.import_bundle(tmp_path / "a.tar").experiment_id)
    disk = tmp_path / "disk"
    mark = scene.store.experiment(number).mark_in(disk)
    events = disk / tensorboard_folder(number, mark) / "trial" / "1" / "events"
    events.parent.mkdir(parents=True)
    events.write_text("x")
    storage = {"type": "shared_fs", "host_path": str(disk)}
    config = {**copy.config(), "checkpoint_storage": storage}
    (copy.path / "config.json").write_text(json.dumps(config))
    other.experiment(copy.id).delete()
    assert events.is_file()


def test_an_imported_trial_goes_on(
    scene: Scene, other: Client, number: int, tmp_path: Path
) -> None:
    """From the checkpoint that came along, as one that was trained here."""
    file = tmp_path / "a.tar"
    scene.client.experiment(number).bundle(file, checkpoints="latest")
    done = other.import_bundle(file)
    trial = other.experiment(done.experiment_id).first_trial()
    made = other.experiment(done.experiment_id).continue_(
        ["searcher.max_length=20"], trial_id=trial.id
    )
    begins = read_continued(made.first_trial().directory)
    assert begins is not None and (begins.uuid,) == done.checkpoints and begins.steps == 4


def test_what_is_not_bundled(scene: Scene, number: int, tmp_path: Path) -> None:
    """Unfinished experiments, other names of files, and over files that exist."""
    running = scene.experiment(job="8")
    scene.run(running, losses=[1.0])
    (tmp_path / "there.tar").write_text("")
    for one, name, words in [
        (running.id, "a.tar.gz", "only finished"),
        (number, "a.zip", r"\.tar\.gz"),
        (number, "there.tar", "exists already"),
        (number, "no/a.tar", "does not exist"),
    ]:
        with pytest.raises(BundleError, match=words):
            scene.client.experiment(one).bundle(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"here", "there.tar"}
    # Nothing stays protected for a bundle that was made.
    scene.client.experiment(number).bundle(tmp_path / "a.tar", checkpoints="all")
    assert scene.client.experiment(number)._snapshot.directory.facts()
    from detslurm.store.checkpoint_facts import mark_deleted

    assert mark_deleted(scene.store.experiment(number), [KEPT]).deleted == (KEPT,)


def contents(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]


def packed(target: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(target, "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in more:
            archive.addfile(member)
    return target


def described(files: dict[str, bytes], name: str, data: bytes) -> dict[str, bytes]:
    """The bundle with one more file, or another content, of which the manifest knows."""
    from hashlib import sha256

    manifest = json.loads(files["manifest.json"])
    manifest["files"][name] = {"size": len(data), "sha256": sha256(data).hexdigest()}
    return {"manifest.json": json.dumps(manifest).encode(), **_rest(files), name: data}


def _rest(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != "manifest.json"}


def _changed(files: dict[str, bytes], /, **fields: Any) -> dict[str, bytes]:
    manifest = {**json.loads(files["manifest.json"]), **fields}
    return {"manifest.json": json.dumps(manifest).encode(), **_rest(files)}


def _link(name: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    return member


Bend = Callable[[dict[str, bytes]], dict[str, bytes]]
LOG = "trials/0/run-1.jsonl"
FACTS = "facts.json"


def facts(files: dict[str, bytes], change: Callable[[list[Any]], list[Any]]) -> dict[str, bytes]:
    return described(files, FACTS, msgspec.json.encode(change(json.loads(files[FACTS]))))


BENT: list[Bend] = [
    _rest,
    lambda f: {**f, LOG: f[LOG].replace(b"2", b"3", 1)},
    lambda f: {**f, LOG: f[LOG] + b"more"},
    lambda f: {name: data for name, data in f.items() if name != LOG},
    lambda f: {**f, "code/more.py": b"import os"},
    lambda f: described(f, "../../outside", b"x"),
    lambda f: described(f, "/tmp/outside", b"x"),
    lambda f: described(f, "code/../../outside", b"x"),
    lambda f: described(f, "code/a\0b", b"x"),
    lambda f: described(f, "metrics.h5", b"x"),
    lambda f: described(f, "facts/000001.json", b"x"),
    lambda f: described(f, "trials/0/run-1.h5", b"x"),
    lambda f: described(f, f"checkpoints/{uuid.uuid4()}/weights", b"x"),
    lambda f: described(f, "code/train.py/x", b"x"),
    lambda f: _changed(f, checkpoints=["../.."]),
    lambda f: _changed(f, checkpoints=[str(uuid.uuid4())]),
    lambda f: _changed(f, version=99),
    lambda f: _changed(f, files={}),
    lambda f: {"manifest.json": b"{", **_rest(f)},
    lambda f: {"manifest.json": b"[" * 100_000, **_rest(f)},
    lambda f: described(f, "config.json", b"[]"),
    lambda f: described(f, "config.json", b'{"searcher": 3}'),
    lambda f: described(f, FACTS, b"{}"),
    lambda f: described(f, FACTS, b"[]"),
    lambda f: described(f, FACTS, b'[{"$float":[]}]'),
    lambda f: described(f, FACTS, b"[" * 100_000),
    lambda f: facts(f, lambda found: found[1:]),
    lambda f: facts(f, lambda found: [{**found[0], "trials": 10**9}]),
    lambda f: facts(f, lambda found: [*found, {"type": "lost", "trials": [77]}]),
    lambda f: facts(f, lambda found: [{**found[0], "time": 1e300}, *found[1:]]),
    lambda f: _changed(f, directories=["code/" + "a/" * 1500 + "b"]),
    lambda f: described(f, "trials/0/run-1.start.json", _framed({"job": {"nodes": 5}})),
    lambda f: described(f, "trials/0/run-1.start.json", b"00000000 {}\n"),
    lambda f: described(f, "trials/0/run-1.start.json", _framed({"resume": 3})),
    lambda f: described(f, "trials/0/run-1.start.json", _framed({"hparams": [1], "time": "x"})),
]


def _framed(record: dict[str, Any]) -> bytes:
    from detslurm.store.frame import frame

    return frame(record)


def assert_untouched(client: Client, before: Any) -> None:
    """No experiment more, no checkpoint, and nothing half."""
    assert visible(client) == before
    assert not list((client.store.path / "checkpoints").glob("*"))


def visible(client: Client) -> Any:
    return [(row.id, row.state, row.trial_count) for row in client.rows()]


def test_nothing_of_a_bent_bundle_gets_in(
    scene: Scene, other: Client, number: int, tmp_path: Path
) -> None:
    """Wrong bytes, names that lead elsewhere, links, what is missing or too much: refused with a
    word, and the store is as before."""
    file = tmp_path / "a.tar"
    scene.client.experiment(number).bundle(file, checkpoints="all")
    files, before = contents(file), visible(other)
    bent = [packed(tmp_path / f"{n}.tar", change(files)) for n, change in enumerate(BENT)]
    (tmp_path / "garbage.tar.gz").write_bytes(os.urandom(5000))
    (tmp_path / "cut.tar").write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    bent += [tmp_path / "garbage.tar.gz", tmp_path / "cut.tar", tmp_path / "nothing.tar"]
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
        less = {name: data for name, data in files.items() if name != "code/train.py"}
        member = _link("code/train.py", kind)
        bent.append(packed(tmp_path / f"link{kind.decode()}.tar", less, member))
    for path in bent:
        with pytest.raises(BundleError):
            print(path, other.import_bundle(path))
        assert_untouched(other, before)
    # Records that name a checkpoint by something else than an id.
    strange = _framed({"t": "checkpoint", "uuid": "../x", "steps": 1})
    with pytest.raises(BundleError, match="no checkpoint"):
        other.import_bundle(packed(tmp_path / "name.tar", described(files, LOG, strange)))
    # A log of nonsense is what a crash may leave as well: readers report it.
    noise = packed(tmp_path / "noise.tar", described(files, LOG, b"x" * 1000))
    assert other.experiment(other.import_bundle(noise).experiment_id).state == "COMPLETED"
    assert not (tmp_path / "outside").exists() and not Path("/tmp/outside").exists()


def test_an_import_that_is_killed(scene: Scene, other: Client, number: int, tmp_path: Path) -> None:
    """At any moment: the experiment is there as a whole, or nobody sees any of it."""
    file = tmp_path / "a.tar"
    scene.client.experiment(number).bundle(file, checkpoints="all")
    before = visible(other)
    whole = (*scene.client.experiment(number).view.trial_states.items(),)
    seen, at = set(), 1
    while True:
        status = killed_import(other, file, at)
        found = [row for row in visible(other) if row not in before]
        assert all(state == "COMPLETED" for _, state, _ in found), found
        for experiment, _, _ in found:
            view = fold_experiment(other.store.experiment(experiment))
            assert (*view.trial_states.items(),) == whole and view.labels == ("a", "b")
            states = {c.state for c in other.trial(view.first_trial).view.checkpoints}
            assert states == {"COMPLETED"}
            before.append((experiment, view.state, view.trial_count))
        seen.add((status, len(found)))
        if status == 0:
            break
        at += 3
    assert seen >= {(signal.SIGKILL, 0), (0, 1)} and at > 30
    assert other.import_bundle(file).trials == 2


def test_an_import_that_is_interrupted_when_it_is_done(
    other: Client, number: int, scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others see it already: what was unpacked may stay, but nothing is taken from them."""
    file = tmp_path / "a.tar"
    scene.client.experiment(number).bundle(file, checkpoints="all")
    before = visible(other)

    class Interrupted(TemporaryDirectory[str]):
        def __exit__(self, *error: object) -> None:
            self.cleanup()
            raise KeyboardInterrupt

    monkeypatch.setattr(importing, "TemporaryDirectory", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        other.import_bundle(file)
    ((experiment, state, _),) = [row for row in visible(other) if row not in before]
    assert state == "COMPLETED"
    assert all(one.verify() is None for one in other.experiment(experiment).list_checkpoints())


def killed_import(client: Client, file: Path, at: int) -> int:
    """Import in a process that is killed at its `at`-th change of the file system."""
    child = os.fork()
    if child == 0:
        try:
            left = at

            def hook(event: str, args: tuple[Any, ...]) -> None:
                nonlocal left
                writes = event != "open" or (isinstance(args[2], int) and args[2] & os.O_CREAT)
                if event in MUTATIONS and writes:
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            client.import_bundle(file)
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def test_it_tells_how_far_it_is_and_leaves_nothing_half(
    scene: Scene, number: int, tmp_path: Path
) -> None:
    """Bytes only grow, up to all of them; what Ctrl-C breaks off leaves no file."""
    told: list[tuple[int, int]] = []
    experiment = scene.client.experiment(number)
    target = tmp_path / "whole" / "b.tar"
    target.parent.mkdir()
    experiment.bundle(target, checkpoints="all", progress=lambda *now: told.append(now))
    assert told == sorted(told) and told[-1][0] == told[-1][1] > 0
    for moment in (0, len(told) // 2, len(told) - 1):
        left = iter([*[None] * moment, KeyboardInterrupt()])

        def interrupt(done: int, whole: int, left: Iterator[Any] = left) -> None:
            if error := next(left):
                raise error

        with pytest.raises(KeyboardInterrupt):
            experiment.bundle(tmp_path / "whole" / "c.tar", progress=interrupt, checkpoints="all")
        assert list(target.parent.iterdir()) == [target]


def _header(kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def test_an_archive_that_unpacks_to_more_than_memory(
    other: Client, scene: Scene, number: int, tmp_path: Path
) -> None:
    """Headers of gigabytes, and headers without an end: refused after a few kilobytes."""
    before, large = visible(other), 1 << 30
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        path = tmp_path / f"{kind.decode()}.tar.gz"
        with gzip.open(path, "wb", compresslevel=1) as file:
            file.write(_header(kind, large))
            for _ in range(256):
                file.write(bytes(1 << 20))
        tracemalloc.start()
        try:
            with pytest.raises(BundleError, match="header"):
                other.import_bundle(path)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 1 << 24
    endless = _header(tarfile.XHDTYPE, 512) + b"8 a=b c\n" * 64
    (tmp_path / "endless.tar").write_bytes(endless * 5000)
    whole = tmp_path / "whole.tar"
    scene.client.experiment(number).bundle(whole)
    (tmp_path / "three.tar.gz").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "bad.tar.gz").write_bytes(gzip.compress(whole.read_bytes())[:200] + bytes(300))
    for name in ("endless.tar", "three.tar.gz", "bad.tar.gz"):
        with pytest.raises(BundleError):
            other.import_bundle(tmp_path / name)
    assert_untouched(other, before)


EVENT = "search/000001.json"


@pytest.mark.parametrize(
    "event",
    [
        {"id": [1], "events": []},
        {"id": "x", "others": [[1, 2]]},
        {"id": "x", "others": [["m", "p", []]]},
        {"id": "x", "others": [[["m"], 0, []]]},
        {"id": "x", "events": [{"e": {}}, {"e": "run_ended", "trial": -1}, {"e": [1]}, 3]},
    ],
)
def test_an_event_of_another_form_is_passed_over(
    scene: Scene, other: Client, tmp_path: Path, event: dict[str, Any]
) -> None:
    """Every command reads the search that came with a bundle."""
    experiment, log = scene.search()
    scene.works(experiment, log, "7_0", losses=[1.0], end="completed")
    scene.client.stored(experiment.id).kill()
    scene.queue.jobs.clear()
    files = searched(scene, experiment, tmp_path)
    path = packed(tmp_path / "b.tar", described(files, EVENT, json.dumps(event).encode()))
    done = other.import_bundle(path)
    found = other.store.experiment(done.experiment_id)
    EventLog(found.search, Search(found.config())).catch_up()


def searched(scene: Scene, experiment: ExperimentDir, folder: Path) -> dict[str, bytes]:
    end_search(experiment, ["completed"], None)
    scene.client.experiment(experiment.id).bundle(folder / "a.tar")
    return contents(folder / "a.tar")
