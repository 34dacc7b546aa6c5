"""Taking a bundle into a store: with new ids, whole or not at all, and nothing in it trusted.

The experiment is invisible until its facts are there, which come last and at once. A crash before
that leaves an invisible id, and checkpoints that belong to nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeVar

import msgspec
from msgspec import structs

from detslurm._base.access import user_name
from detslurm.config import ExperimentConfig, SiteProfile, load_experiment
from detslurm.sdk.bundle.archive import (
    CONFIG,
    FACTS,
    LARGEST,
    UUID,
    VERSIONS,
    ByteMeter,
    Manifest,
    Progress,
    Versions,
    open_bundle,
    read_manifest,
    unpack,
)
from detslurm.sdk.errors import BundleError
from detslurm.searcher import Search
from detslurm.storage import Storage, from_config, list_resources
from detslurm.storage.names import without_files
from detslurm.store import (
    EventLog,
    ExperimentDir,
    ExperimentFacts,
    ExperimentView,
    FactLog,
    Store,
    StoreError,
    fold_experiment,
    fold_trial,
    fs,
    put_record,
)
from detslurm.store.errors import CorruptRecord, explained
from detslurm.store.frame import block, decode_json, encode_json, unframe, unframe_all
from detslurm.store.provenance import keep
from detslurm.store.reading import started_checkpoints
from detslurm.store.records import LARGEST as MOST_TRIALS
from detslurm.store.records import (
    CheckpointDeleted,
    CheckpointFilesRemoved,
    CheckpointMetadata,
    Created,
    Intent,
    Lost,
    Record,
    RecordedProvenance,
    SearchEnded,
    Set,
    Trials,
    plain_of,
    typed,
)

V = TypeVar("V")

# Records that may name a storage of the other site.
_PLACED = ("checkpoint_started", "checkpoint", "storage")
_KEPT = ("save_experiment_best", "save_trial_best", "save_trial_latest")


@dataclass(frozen=True)
class Imported:
    """An experiment that was imported.

    Attributes:
        experiment_id: Its id here.
        was: Its id where it was made.
        owner: Its user there.
        trials: The number of its trial ids.
        checkpoints: The storage ids here of the checkpoints that came along.
        masked: The keys of the configuration whose values the bundle lacks.
    """

    experiment_id: int
    was: int
    owner: str
    trials: int
    checkpoints: tuple[str, ...]
    masked: tuple[str, ...]


def import_bundle(path: Path, store: Store, site: SiteProfile, progress: Progress) -> Imported:
    """Read a bundle into a store. Raises `BundleError`, and nothing is seen of it then. The files
    of checkpoints count twice for `progress`: when they are unpacked, and when stored."""
    try:
        with ExitStack() as stack:
            # A file that is no archive, or a broken archive, raises while it is opened or read.
            archive = stack.enter_context(open_bundle(path))
            manifest = read_manifest(archive)
            whole = manifest.size + manifest.checkpoints_size
            return _Import(manifest, store, site, ByteMeter(progress, whole)).run(archive)
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from error
    except OSError as error:
        raise BundleError(f"{error.filename or path}: {error.strerror or error}") from error
    except Exception as error:  # whatever the bytes of a stranger do to a reader of archives
        if isinstance(error, StoreError) and not isinstance(error, CorruptRecord):
            raise
        why = str(error) or repr(error)
        raise BundleError(f"{path} is no bundle, or it is damaged: {why}"[:500]) from error


@dataclass
class _Import:
    """One import: everything goes to hidden places, and is then made visible."""

    manifest: Manifest
    store: Store
    site: SiteProfile
    meter: ByteMeter
    along: dict[str, str] = field(default_factory=dict)  # new ids of the checkpoints in the bundle
    new: dict[str, str] = field(default_factory=dict)  # those of all that its records name

    def run(self, archive: tarfile.TarFile) -> Imported:
        self.along = {old: str(uuid.uuid4()) for old in self.manifest.checkpoints}
        experiment, done = self.store.new_experiment(), False
        try:
            with TemporaryDirectory(prefix=".import-", dir=experiment.path) as name:
                stage = Path(name)
                unpack(archive, self.manifest, stage, self.meter)
                self.new = {**{old: str(uuid.uuid4()) for old in _saved(stage)}, **self.along}
                config = self._config(stage)
                facts = _facts(stage)
                storage = from_config(config.to_dict()["checkpoint_storage"])
                with _stored(storage, self.along, stage / "checkpoints", self.meter):
                    self._build(experiment, stage, config, facts)
                    done = True
        except BaseException:
            if not done:  # else others see it, and the storage has its checkpoints
                _clear(experiment)
            raise
        made, trials = self.manifest, experiment.created().trials
        checkpoints = tuple(self.along.values())
        return Imported(
            experiment.id, made.experiment, made.owner, trials, checkpoints, made.masked
        )

    def _config(self, stage: Path) -> ExperimentConfig:
        """The configuration, with the checkpoint storage of this site."""
        given = ExperimentConfig.from_dict(_json(stage / CONFIG)).to_dict()
        ours = _own_storage(self.site, self.store.path)
        theirs = given["checkpoint_storage"]
        kept = {key: theirs[key] for key in _KEPT if key in theirs}
        return ExperimentConfig.from_dict({**given, "checkpoint_storage": {**ours, **kept}})

    # -- the experiment --------------------------------------------------------------------------

    def _build(
        self, experiment: ExperimentDir, stage: Path, config: ExperimentConfig, facts: _Facts
    ) -> None:
        count = len(facts.trial_ids)
        first = self.store.reserve_trials(experiment.id, count)
        ids = dict(zip(facts.trial_ids, range(first, first + count), strict=True))
        experiment.prepare_trials(first, count)
        if (stage / "code").is_dir():
            with experiment.freeze_code() as code:
                shutil.copytree(stage / "code", code, dirs_exist_ok=True)
        for index in range(count):
            if (folder := stage / "trials" / str(index)).is_dir():
                self._trial(folder, experiment, first + index)
        if (stage / "search").is_dir():
            self._search(stage / "search", experiment)
        plain = config.to_dict()
        text = msgspec.json.format(msgspec.json.encode(plain), indent=2).decode()
        experiment.write_config(plain, text, config.masked())
        created = structs.replace(facts.created, provenance=self._provenance(stage, facts.created))
        self._commit(experiment, replace(facts, created=created), ids)

    def _provenance(self, stage: Path, created: Created) -> RecordedProvenance | None:
        """The record of what it ran, under the digests that its parts have here."""
        if created.provenance is None:
            return None
        path, found = stage / VERSIONS, Versions()
        if path.is_file():
            found = msgspec.json.decode(_limited(path), type=Versions)
        return structs.replace(
            created.provenance,
            code=found.code and keep(self.store, found.code),
            software=found.software and keep(self.store, found.software),
        )

    def _trial(self, folder: Path, experiment: ExperimentDir, trial_id: int) -> None:
        trial = experiment.trial(trial_id)
        trial.create()
        for source in sorted(folder.iterdir()):
            target = trial.path / source.name
            if source.suffix == ".json":
                record = decode_json(self._renamed(unframe(_limited(source).rstrip(b"\n"))))
                own = {"trial": trial_id, "experiment": experiment.id}
                put_record(target, record | {key: own[key] for key in own if key in record})
                continue
            with source.open("rb") as lines, _new_file(target) as file:
                if source.suffix == ".log":
                    shutil.copyfileobj(lines, file)
                else:
                    file.writelines(map(self._line, lines))

    def _line(self, line: bytes) -> bytes:
        """A line with the new ids of checkpoints, without the storages of the other site."""
        try:
            records = unframe_all(line.rstrip(b"\n"))
        except CorruptRecord:
            return b"corrupt " + line[8:]  # for all readers: some of them decode less
        return block([self._renamed(record) for record in records])

    def _renamed(self, record: Mapping[str, Any]) -> bytes:
        place = ("storage",) if record.get("t") in _PLACED else ()
        record = {key: value for key, value in record.items() if key not in place}
        if outputs := record.get("outputs"):  # those that came along are in the storage
            kept = ("uuid", "resources", "time")
            record["outputs"] = {key: outputs[key] for key in kept if key in outputs}
        text = encode_json(record).decode()
        return UUID.sub(lambda match: self.new.get(match[0], match[0]), text).encode()

    def _search(self, folder: Path, experiment: ExperimentDir) -> None:
        fs.claim_directory(experiment.search)
        log = FactLog(experiment.search)
        for number, source in enumerate(sorted(folder.iterdir()), 1):
            event = decode_json(self._renamed(_json(source)))
            log.put(number, {key: value for key, value in event.items() if key not in ("n", "v")})

    def _commit(self, experiment: ExperimentDir, facts: _Facts, ids: Mapping[int, int]) -> None:
        """All facts at once: with them the experiment is there."""
        origin = f"experiment {self.manifest.experiment} of {self.manifest.owner}"
        created = structs.replace(
            facts.created,
            id=experiment.id,
            imported=origin,
            import_id=uuid.uuid4().hex,
            first_trial=ids[facts.created.first_trial],
        )
        known = ((fact, getattr(fact, "uuid", None)) for fact in facts.rest)
        more = [self._fact(fact, ids) for fact, name in known if name is None or name in self.new]
        stamped = [_stamped(record) for record in (created, *more)]
        if gone := self._not_along(experiment, _checked(experiment, stamped)):
            stamped.append(_stamped(CheckpointDeleted(uuids=gone)))
        stage = Path(fs.temporary_name(str(experiment.log.path)))
        fs.claim_directory(stage)
        for number, plain in enumerate(stamped, 1):
            FactLog(stage).put(number, plain)
        experiment.log.path.rmdir()
        if not fs.publish_directory(stage, experiment.log.path):
            raise BundleError(f"{experiment.log.path} exists already")

    def _fact(self, record: Record, ids: Mapping[int, int]) -> Record:
        """A fact with the ids of here."""
        match record:
            case Trials():
                return structs.replace(record, first_trial=ids[record.first_trial])
            case Intent():
                return structs.replace(record, trial=ids.get(record.trial or 0))
            case Lost():
                return structs.replace(record, trials=tuple(ids[t] for t in record.trials))
            case SearchEnded():
                closed = {ids[trial]: how for trial, how in record.closed.items() if trial in ids}
                return structs.replace(record, closed=closed)
            case CheckpointFilesRemoved() | CheckpointMetadata():
                return structs.replace(record, uuid=self.new[record.uuid])
        return record

    def _not_along(self, experiment: ExperimentDir, view: ExperimentView) -> tuple[str, ...]:
        """Checkpoints that exist by the records, and whose files did not come along."""
        here, started = set(self.along.values()), dict[str, None]()
        for row in view.trials:
            started |= dict.fromkeys(started_checkpoints(experiment.trial(row.id), row.run_count))
        return tuple(uuid for uuid in started if uuid not in here)


def _stamped(record: Record) -> dict[str, Any]:
    return {"v": 1, **plain_of(structs.replace(record, n=0, by=user_name()))}


def _checked(experiment: ExperimentDir, stamped: list[dict[str, Any]]) -> ExperimentView:
    """The experiment as every reader will see it; raises `BundleError` if they can't read it."""
    numbered = [{**plain, "n": n} for n, plain in enumerate(stamped, 1)]
    try:
        view = fold_experiment(experiment, ExperimentFacts().fold(numbered))
        finished = _convinced(view).finished
        for row in view.trials:
            trial = experiment.trial(row.id)
            for run in trial.runs():
                for record in (run.start, run.end):
                    if record is not None and record.problem:
                        raise CorruptRecord(record.problem)
            _convinced(fold_trial(trial))
        if fs.exists(experiment.search):
            EventLog(experiment.search, Search(experiment.config())).catch_up()
    except Exception as error:  # whatever a record of a stranger may do to a fold
        raise BundleError(f"its records make no sense: {error!r}"[:300]) from error
    if not finished:
        raise BundleError("its records are those of an experiment that is not finished")
    return view


def _convinced(view: V) -> V:
    """The view, in which every value has the type that readers rely on."""
    plain = msgspec.to_builtins(view, str_keys=True)
    return msgspec.convert(plain, type(view), str_keys=True)


@dataclass(frozen=True)
class _Facts:
    """The facts of a bundle: the first fact, the others, and all trial ids that they give."""

    created: Created
    rest: tuple[Record, ...]
    trial_ids: tuple[int, ...]


def _facts(stage: Path) -> _Facts:
    records = [typed(plain) for plain in _json(stage / FACTS) if isinstance(plain, dict)]
    created = next((r for r in records if isinstance(r, Created)), None)
    if created is None or not isinstance(records[0], Created):
        raise BundleError("its first fact is missing")
    known = (Trials, Intent, Lost, SearchEnded, CheckpointFilesRemoved, CheckpointMetadata, Set)
    rest = tuple(record for record in records[1:] if isinstance(record, known))
    ids: list[int] = []
    for record in (created, *rest):
        if isinstance(record, (Created, Trials)):
            if not 0 < record.trials <= MOST_TRIALS or record.first_trial < 1:
                raise BundleError("its facts give trial ids that can't be")
            ids += range(record.first_trial, record.first_trial + record.trials)
            if len(ids) > MOST_TRIALS:
                raise BundleError("it has more trials than an experiment may have")
    if len(set(ids)) != len(ids):
        raise BundleError("its facts give a trial id twice")
    if any(t not in ids for r in rest if isinstance(r, Lost) for t in r.trials):
        raise BundleError("its facts name a trial that is not there")
    # Jobs, processes and other experiments are those of another place.
    local = {"cluster": None, "owner": None, "runner": None, "parent": None, "origin": None}
    return _Facts(structs.replace(created, **local, sources=()), rest, tuple(ids))


def _saved(stage: Path) -> Iterator[str]:
    """Every checkpoint that a record may make part of the experiment. All get new ids: a deletion
    of the experiment must not delete checkpoints with the old ids here."""
    for path in sorted(stage.glob("trials/*/run-*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                if b'"checkpoint' not in line and b"\\u" not in line:
                    continue
                try:
                    records = unframe_all(line.rstrip(b"\n"))
                except CorruptRecord:
                    continue  # it does not count
                for record in records:
                    if "uuid" in record:
                        if not UUID.fullmatch(str(record["uuid"])):
                            raise BundleError(f"{record['uuid']!r:.80} is no checkpoint")
                        yield str(record["uuid"])


def _json(path: Path) -> Any:
    return decode_json(_limited(path))


def _limited(path: Path) -> bytes:
    if path.stat().st_size > LARGEST:
        raise BundleError(f"{path.name} is too large")
    return path.read_bytes()


def _own_storage(site: SiteProfile, root: Path) -> dict[str, Any]:
    """The place of checkpoints of an experiment that names none."""
    some = {"entrypoint": "true", "searcher": {"name": "single", "metric": "x"}}
    loaded = load_experiment(some, site=site, root=root)
    found: dict[str, Any] = loaded.config.to_dict()["checkpoint_storage"]
    return found


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file, on disk when the block ends."""
    try:
        with os.fdopen(fs.create(str(path), os.O_WRONLY | os.O_EXCL), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise explained(error, str(path)) from error


@contextmanager
def _stored(
    storage: Storage, new: Mapping[str, str], folder: Path, meter: ByteMeter
) -> Iterator[None]:
    """The checkpoints in the storage; they leave it again where the block fails."""
    try:
        for old, storage_id in new.items():
            _store(storage, storage_id, folder / old, meter)
        yield
    except BaseException:
        for storage_id in new.values():
            with contextlib.suppress(Exception):  # the first error is to be seen
                storage.discard(storage_id)
        raise


def _store(storage: Storage, storage_id: str, source: Path, meter: ByteMeter) -> None:
    if not source.is_dir():
        raise BundleError(f"checkpoint {source.name} has no files")
    storage.begin(storage_id)
    found = list_resources(source)
    storage.put(storage_id, source, without_files(found))
    for name, size in found.items():
        if not name.endswith("/"):
            storage.put(storage_id, source, [name])
            meter.add(size)
    if storage.staging(storage_id) is not None:
        storage.flush(storage_id)
    storage.seal(storage_id, None)


def _clear(experiment: ExperimentDir) -> None:
    """The id stays, for the ledger may know it; nothing else does."""
    for path in list(experiment.path.iterdir()):
        if path.is_dir():
            fs.remove_tree(path)
        else:
            path.unlink(missing_ok=True)
