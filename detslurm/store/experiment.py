"""An experiment's directory: configuration, frozen code, facts, and the trials' buckets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from detslurm._base import access
from detslurm._base.access import user_name
from detslurm.store import facts as numbered
from detslurm.store import fs
from detslurm.store.errors import (
    CorruptRecord,
    NotFound,
    RecordMissing,
    StoreError,
    StoreFault,
    StoreFull,
    is_refusal,
)
from detslurm.store.facts import FactLog, format_of, refuse_newer
from detslurm.store.frame import decode_json, encode_json
from detslurm.store.trial import TrialDir

if TYPE_CHECKING:
    from detslurm.config.run_config import RunConfig
    from detslurm.store.records import Created, Record
    from detslurm.store.store import Store

T = TypeVar("T")

BUCKETS: Final = 100

_MASKED: Final = "config.masked.json"

# Facts that change how a finished experiment reads: the index must learn of them.
TOUCHING: Final = frozenset(
    {
        *("intent", "set", "lost", "found", "submitted", "deferred", "trials", "search_ended"),
        *("checkpoint_deleted", "checkpoint_files_removed", "checkpoint_metadata"),
        "checkpoint_verified",
    }
)


# Ends of jobs and deletions are recorded first, by a fact of a few hundred bytes.
_FREEING: Final = frozenset({"intent", "set", "checkpoint_deleted", "checkpoint_files_removed"})


class ExperimentDir:
    """One experiment on disk."""

    def __init__(self, store: Store, experiment_id: int) -> None:
        self.store = store
        self.id = experiment_id
        self.path = store.path / "experiments" / str(experiment_id)
        self.log = FactLog(self.path / "facts")
        self._config: bytes | None = None  # it never changes
        self._is_known = False  # that this version knows the rules by which it decides

    @classmethod
    def at(cls, path: Path) -> ExperimentDir:
        """The experiment whose directory is `path`: the form in which a job's processes get it."""
        from detslurm.store.store import Store  # which imports this module

        return cls(Store(path.parent.parent), int(path.name))

    @property
    def code(self) -> Path:
        """The frozen context directory."""
        return self.path / "code"

    @property
    def jobs(self) -> Path:
        """Where submitit keeps batch scripts and what fails before a runner starts."""
        return self.path / "jobs"

    @property
    def search(self) -> Path:
        """The events of the search, where its method decides as results come in."""
        return self.path / "search"

    @property
    def metrics_path(self) -> Path:
        """The compacted metrics of all trials, once the experiment is finished."""
        return self.path / "metrics.h5"

    def freeze_code(self) -> AbstractContextManager[str]:
        """A directory to copy the context into; it becomes `code` whole, or not at all.

        Others can't read it: the configuration lies beside the code as often as not.
        """
        return fs.staged_directory(self.code)

    def write_config(
        self, config: Mapping[str, Any], text: str, masked: Mapping[str, Any] | None = None
    ) -> None:
        """Keep the resolved configuration and the user's text as it was given.

        They are their owner's alone. Others of a shared store see the `masked` configuration, by
        default one without the secrets that names and forms reveal.
        """
        config = _without_root(config, self.store.path)
        fs.put_if_absent(self.path / "secret", os.urandom(16).hex().encode(), secret=True)
        fs.put_if_absent(self.path / "config.yaml", text.encode(), secret=True)
        if access.shared(str(self.path)):
            from detslurm.config.secret_values import masked_values  # only here: few are shared

            shown = _without_root(
                masked_values(config) if masked is None else masked, self.store.path
            )
            fs.put_if_absent(self.path / _MASKED, encode_json(shown) + b"\n")
        fs.put_if_absent(self.path / "config.json", encode_json(config) + b"\n", secret=True)

    def token(self, trial_id: int, run: int) -> str:
        """The secret of a run's processes."""
        data = fs.read_file(self.path / "secret", expected=True)
        if data is None:
            raise NotFound(f"experiment {self.id} has no secret: its submission broke off")
        return f"{data.decode()}.{trial_id}.{run}"

    def config(self) -> dict[str, Any]:
        """The resolved configuration as plain data; to others than its owner without secrets."""
        data, whole = (self._config, True) if self._config else self._read_config()
        try:
            value = decode_json(data)
        except ValueError as error:
            raise CorruptRecord(f"{self.path / 'config.json'}: {error}") from error
        if not isinstance(value, dict):
            raise CorruptRecord(f"{self.path / 'config.json'} is not a mapping")
        if whole:
            self._config = data
        return _with_root(value, self.store.path)

    def run_config(self) -> RunConfig:
        """The part of the configuration that runs read, with its types."""
        from detslurm.config.run_config import RunConfig  # lists of experiments start without it

        try:
            return RunConfig.of(self.config())
        except ValueError as error:
            raise CorruptRecord(f"{self.path / 'config.json'}: {error}") from error

    def _read_config(self) -> tuple[bytes, bool]:
        """The configuration, and whether it has its secrets."""
        whole = True
        try:
            data = fs.read_file(self.path / "config.json", expected=True)
        except StoreFault as fault:
            data, whole = fs.read_file(self.path / _MASKED) if is_refusal(fault) else None, False
            if data is None:
                raise
        if data is None:
            raise NotFound(f"experiment {self.id} has no configuration: its submission broke off")
        return data, whole

    def append(self, record: Record | Mapping[str, Any], after: int = 0) -> int:
        """Commit a fact under the next free number; `time` and `by` are filled in.

        Raises `ValueError` where a field has a wrong type, and `NewerFormat`.
        """
        stamped = _stamped(record)
        return self._committed(stamped, lambda: self.log.append(stamped, after))

    def append_next(self, record: Record | Mapping[str, Any], after: int) -> bool:
        """Commit a fact only if `after` is the last number; False where more has happened."""
        stamped = _stamped(record)
        return self._committed(stamped, lambda: self.log.put_next(after + 1, stamped))

    def _committed(self, stamped: Mapping[str, Any], commit: Callable[[], T]) -> T:
        """The result of `commit`; on a full disk, a fact that frees space replaces a cache."""
        self._refuse_newer()
        try:
            done = commit()
        except StoreFull:
            if stamped.get("type") not in _FREEING or not self.store.make_room():
                raise
            done = commit()
        if done and stamped.get("type") in TOUCHING:
            self.store.touch(self.id)
        return done

    def _refuse_newer(self) -> None:
        """Raise `NewerFormat` if a newer version decides here."""
        if not self._is_known and (first := self.log.read(1)) is not None:
            refuse_newer(self.log.name(1), format_of(first))
            self._is_known = True

    def create(self, record: Created) -> bool:
        """Commit the `created` fact, always number 1: from here on the experiment is visible."""
        own = {"id": self.id, "format": numbered.FORMAT}
        return self.log.put(1, {**_stamped(record), **own})

    def facts(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """All facts past number `after` in order, each with its number as "n"."""
        return self.log.facts(after)

    def created(self) -> Created:
        """The `created` fact, empty where it can't be read; or NotFound."""
        fact = self.log.read(1, expected=True)
        if fact is None:
            raise self.never_created()
        from detslurm.store.records import Created, typed

        found = typed(fact)
        return found if isinstance(found, Created) else Created()

    def never_created(self) -> StoreError:
        """The error for an experiment without its `created` fact: it was lost, or never written."""
        if self.was_created():
            return RecordMissing(self.log.name(1), f"nothing is known of experiment {self.id}")
        return NotFound(f"there is no experiment {self.id} in {self.store.path}")

    def was_created(self) -> bool:
        """Whether there are facts: a submission that died, or is still busy, has none yet."""
        last = self.log.last_listed()
        if last == 2 and not fs.exists(self.log.name(1)):
            ahead = self.log.read(2) or {}  # the job to come of a custom search, but no jobs
            return ahead.get("type") != "submitted" or bool(ahead.get("jobs"))
        return last > 0

    def mark_in(self, storage: Path | None) -> str | None:
        """A mark of this experiment, where a storage outside of the store may serve experiments of
        other stores with the same number; None where the storage is inside."""
        if storage is not None and storage.resolve().is_relative_to(self.store.path.resolve()):
            return None
        import hashlib  # only here: most storages are inside

        created = self.created()
        # A copy has the time of its original.
        known = (created.time, created.import_id) if created.import_id else created.time
        return hashlib.sha256(repr(known).encode()).hexdigest()[:12]

    def foreign_owner(self) -> str | None:
        """The name of the experiment's user, where that is another user."""
        me, uid = os.geteuid(), self._owner()
        if me in (0, uid):
            return None
        if uid not in access.UNKNOWN_OWNERS:
            from detslurm.store.root_access import owner  # only here: it is mostly one's own

            return owner(uid)
        # Only here the record counts: its writer chose the name in it.
        by = self.created().by or str(uid)
        return None if by == user_name() else by

    def refuse_others_code(self) -> None:
        """Raise `SystemExit` if another user has put this in the place of the user's experiment:
        the owner of a directory above can rename its entries."""
        me, uid = os.geteuid(), self._owner()
        if me not in (0, uid) and uid not in access.UNKNOWN_OWNERS:
            raise SystemExit(
                f"detslurm: {self.path} belongs to user {uid}: jobs of user {me} don't run its code"
            )

    def _owner(self) -> int:
        # The maker of a link chooses its target: the link itself counts, never the target.
        uid = fs.owner_of(self.path, follow=False)
        if uid is None:
            raise NotFound(f"there is no experiment {self.id} in {self.store.path}")
        return uid

    def as_owner(self) -> AbstractContextManager[None]:
        """Let root do in a block what the experiment's owner may do, and no more."""
        return access.as_owner_of(os.fspath(self.path))

    def prepare_trials(self, first: int, count: int) -> None:
        """Make the bucket directories that these trials need, so that no two nodes race for one."""
        some = range(first, first + min(count, BUCKETS))
        for bucket in sorted({trial % BUCKETS for trial in some}):
            fs.ensure_directory(self.path / "trials" / f"{bucket:02d}")

    def trial(self, trial_id: int) -> TrialDir:
        """The place of one of this experiment's trials, whether it ran or not."""
        path = self.path / "trials" / f"{trial_id % BUCKETS:02d}" / str(trial_id)
        return TrialDir(path, trial_id, self.id)


def _stamped(record: Record | Mapping[str, Any]) -> dict[str, Any]:
    from detslurm.store.records import Corrupt, Record, plain_of, typed  # agents write no facts

    plain = plain_of(record) if isinstance(record, Record) else record
    if isinstance(found := typed(plain), Corrupt):
        raise ValueError(f"{plain}: {found.problem}")
    return {"time": time.time(), "by": user_name(), **plain}


# A store can be moved, copied and mounted elsewhere: its configurations have paths of checkpoints
# in it relative to its root on disk. Paths that users write there are absolute.


def _without_root(config: Mapping[str, Any], root: Path) -> Mapping[str, Any]:
    host = _host_path(config)
    if host is None or not Path(host).is_relative_to(root) or ".." in host:
        return config
    found = _with_host_path(config, str(Path(host).relative_to(root)))
    below = found["checkpoint_storage"].get("storage_path")
    if isinstance(below, str) and Path(below).is_relative_to(host):
        found["checkpoint_storage"]["storage_path"] = str(Path(below).relative_to(host))
    return found


def _with_root(config: dict[str, Any], root: Path) -> dict[str, Any]:
    if _names_its_store(config.get("checkpoint_storage")):
        place = {"type": "shared_fs", "host_path": str(root / "checkpoints")}
        return {**config, "checkpoint_storage": place}
    host = _host_path(config)
    return config if host is None else _with_host_path(config, str(root / host))


def _names_its_store(section: Any) -> bool:
    """Whether older versions recorded it for a user's own batch script: the absolute path of the
    store's checkpoints, and nothing else. A user's own section has a policy, too."""
    if not isinstance(section, Mapping) or section.keys() != {"type", "container_path"}:
        return False
    kind, place = str(section["type"]), Path(str(section["container_path"]))
    return kind == "directory" and place.name == "checkpoints"


def _host_path(config: Mapping[str, Any]) -> str | None:
    section = config.get("checkpoint_storage")
    found = section.get("host_path") if isinstance(section, Mapping) else None
    return found if isinstance(found, str) else None


def _with_host_path(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {**config, "checkpoint_storage": {**config["checkpoint_storage"], "host_path": path}}
