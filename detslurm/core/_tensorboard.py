"""TensorBoard files of a trial: written on the node, kept beside the checkpoints."""

from __future__ import annotations

import enum
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from detslurm._base.node_files import make_directory
from detslurm.core._retries import keep_trying
from detslurm.core._tensorboard_events import EventFile
from detslurm.storage import Storage
from detslurm.storage.interface import tensorboard_folder
from detslurm.store import ExperimentDir, TrialDir

logger = logging.getLogger("detslurm.core")

_WRITE_EVERY = 2.0
_UPLOADS_APART = 30  # in writes: once a minute

FileSelector = Callable[[Path], bool]
Mangler = Callable[[Path, int], Path]


class TensorboardMode(enum.Enum):
    """The ranks that write and store TensorBoard files.

    Attributes:
        AUTO: The chief writes every reported metric, and stores its files from time to time, with
            each checkpoint and at the end.
        MANUAL: Nothing is stored but by `upload_tensorboard_files()`.
    """

    AUTO = "AUTO"
    MANUAL = "MANUAL"


_newest: deque[weakref.ref[TensorboardFiles]] = deque(maxlen=1)


class TensorboardFiles:
    """This process's TensorBoard directory, and its copy in the checkpoint storage."""

    def __init__(self, storage: Storage, trial: TrialDir, rank: int) -> None:
        self._storage = storage
        self._trial = trial
        self._rank = rank
        self._path: Path | None = None
        self._stored: dict[Path, tuple[int, int]] = {}
        self.before_upload: list[Callable[[], None]] = []
        # The code's threads and the uploading thread: one directory is made, and no two uploads
        # store the same file at once.
        self._lock = threading.Lock()
        _newest.append(weakref.ref(self))

    @staticmethod
    def newest() -> TensorboardFiles | None:
        """The directory of the newest context of this process that is still there."""
        return _newest[-1]() if _newest else None

    @property
    def path(self) -> Path:
        """The directory, made when first asked for."""
        if self._path is not None:
            return self._path  # at once: an upload, which holds the lock, may take minutes
        with self._lock:
            if self._path is None:
                self._path = make_directory("tensorboard")
            return self._path

    @cached_property
    def _prefix(self) -> str:
        experiment = ExperimentDir.at(self._trial.experiment_path)
        base = getattr(self._storage, "base", None)
        mark = keep_trying(lambda: experiment.mark_in(base))
        return f"{tensorboard_folder(experiment.id, mark)}/trial/{self._trial.id}"

    @property
    def begun(self) -> bool:
        """Whether the code has asked for the directory."""
        return self._path is not None

    def upload(self, selector: FileSelector, mangler: Mangler) -> None:
        """Store files that are new or have changed since the last time."""
        if self._path is None:
            return
        for flush in self.before_upload:
            flush()
        with self._lock:
            for file in sorted(self._path.rglob("*")):
                if file.is_file():
                    self._upload_one(file, file.relative_to(self._path), selector, mangler)

    def _upload_one(self, file: Path, name: Path, selector: FileSelector, mangler: Mangler) -> None:
        status = file.stat()
        state = (status.st_size, status.st_mtime_ns)
        if self._stored.get(name) == state or not selector(name):
            return
        target = Path(mangler(name, self._rank))
        if target.is_absolute() or ".." in target.parts:
            raise ValueError(
                f"the mangler made {str(target)!r} of {str(name)!r}: not below the folder"
            )
        self._storage.put_file(file, f"{self._prefix}/{target.as_posix()}")
        self._stored[name] = state


class AutoTensorboard:
    """Writes the chief's metrics to an event file and stores its directory, in the background.

    Without `writes_metrics` it stores what the code itself writes, once it has asked for the
    directory. While it is not `enabled`, nothing is written and nothing stored.
    """

    def __init__(self, files: TensorboardFiles, *, writes_metrics: bool = True) -> None:
        self.enabled = True
        self._files, self._writes_metrics = files, writes_metrics
        self._events = EventFile(lambda: files.path)
        self._closing = threading.Event()
        self._due = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # a checkpoint may be saved by a thread of its own

    def metrics(self, group: str, steps: int, values: Mapping[str, Any], time: float) -> None:
        """Take reported metrics; they are written soon."""
        if not self.enabled:
            return
        if self._writes_metrics:
            self._events.add(group, steps, values, time)
        if self._thread is None and (self._writes_metrics or self._files.begun):
            self._start()

    def checkpoint_saved(self) -> None:
        """Store the files at the next occasion."""
        if not self.enabled:
            return
        self._due = True
        if self._thread is None and self._files.begun:
            self._start()

    def close(self) -> None:
        """Write and store the rest."""
        if not self._closing.is_set():
            self._closing.set()
            if self._thread is not None:
                self._thread.join()
            self._events.close()
            self._upload()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tensorboard", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        rounds = 0
        while not self._closing.wait(_WRITE_EVERY):
            rounds += 1
            self._events.write()
            if self._due or rounds % _UPLOADS_APART == 0:
                self._due = False
                self._upload()

    def _upload(self) -> None:
        if not self.enabled:
            return
        try:
            self._files.upload(everything, unmangled)
        except Exception as error:  # cloud libraries raise errors of all kinds
            # TensorBoard's files are a convenience: the metrics themselves are in the store.
            logger.warning("TensorBoard files can't be stored: %s", error)


def everything(path: Path) -> bool:
    """Selects all files."""
    return True


def unmangled(path: Path, rank: int) -> Path:
    """Keeps names as they are."""
    return path
