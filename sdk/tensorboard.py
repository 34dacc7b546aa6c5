"""TensorBoard over experiments: where their event files are, and a server for one reader."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from wsgiref.types import WSGIApplication

from detslurm._base.node_files import own_name
from detslurm.sdk.checkpoints.catalog import storage_of
from detslurm.sdk.disk.usage import tensorboard_path
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.sdk.export import export
from detslurm.sdk.export.content import content_of
from detslurm.sdk.export.updating import require
from detslurm.sdk.trials.trial import Trial
from detslurm.storage import from_config
from detslurm.store import StoreError

RELOAD_SECONDS: Final = 30


class EventFiles(NamedTuple):
    """The event files of an experiment or of a trial.

    The `label` is its name in TensorBoard, such as "experiment-7" or "trial-12"; `path` is the
    directory of the files that its code has written, None without any on a disk that this machine
    sees.
    """

    label: str
    path: Path | None
    experiment: Experiment


def event_files(experiments: Iterable[Experiment], trials: Iterable[Trial]) -> list[EventFiles]:
    """Return the event files of experiments (all their trials) and of single trials, in each
    storage that their code has named."""
    found = []
    for one in experiments:
        paths = _written(one, one.iter_trials(), "")
        found += _labelled(f"experiment-{one.id}", paths, one)
    for trial in trials:
        paths = _written(trial.experiment, [trial], f"trial/{trial.id}")
        found += _labelled(f"trial-{trial.id}", paths, trial.experiment)
    return found


def _labelled(label: str, paths: Sequence[Path], experiment: Experiment) -> list[EventFiles]:
    """Entries whose labels differ: the second place of experiment 7 is experiment-7-2."""
    return [
        EventFiles(label if number == 1 else f"{label}-{number}", path, experiment)
        for number, path in enumerate(paths or [None], 1)
    ]


def _written(experiment: Experiment, trials: Iterable[Trial], below: str) -> list[Path]:
    """Where event files of these trials are, in each storage once."""
    directory = experiment._snapshot.directory
    try:
        named = [section for trial in trials for section in trial.view.storages]
        storages = [storage_of(directory), *map(from_config, named)]
    except (StoreError, KeyError, ValueError):
        return []
    folders = [tensorboard_path(directory, storage) for storage in storages]
    paths = dict.fromkeys(folder / below for folder in folders if folder is not None)
    # TensorBoard parts its argument at commas.
    return [path for path in paths if _is_open(path) and "," not in str(path)]


def _is_open(path: Path) -> bool:
    """Whether it is a directory that may be read: another user's may be closed."""
    return os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK)  # noqa: PTH112 (never raises)


def specification(found: Iterable[EventFiles]) -> str:
    """Return the argument of `tensorboard --logdir_spec`, without entries that have no path."""
    return ",".join(f"{one.label}:{one.path}" for one in found if one.path is not None)


@contextmanager
def with_snapshots(found: Sequence[EventFiles]) -> Iterator[list[EventFiles]]:
    """Yield event files for all of them: where code has written none, a copy of the metrics as of
    now. Raises `LifecycleError` if any has reported nothing yet."""
    with TemporaryDirectory(prefix=own_name("tensorboard-")) as folder:
        missing = {one.experiment.id: one.experiment for one in found if one.path is None}
        if missing:
            export(missing.values(), "tensorboard", folder)
        yield [one if one.path else _copied(one, Path(folder)) for one in found]


def _copied(one: EventFiles, folder: Path) -> EventFiles:
    path = folder / content_of(one.experiment).folder
    path = path if one.label.startswith("experiment-") else path / one.label
    if not path.is_dir():
        raise LifecycleError(f"{one.label} has reported no metrics yet")
    return one._replace(path=path)


class TensorboardServer(NamedTuple):
    """A TensorBoard in this process, on this machine's loopback address: nothing is served without
    the secret `path`, the first part of its addresses."""

    port: int
    path: str

    def url(self, port: int | None = None) -> str:
        """Return its address for a browser, at the `port` of a tunnel (by default its own)."""
        return f"http://localhost:{port or self.port}{self.path}/"


def serve(spec: str, port: int | None = None) -> TensorboardServer:
    """Start TensorBoard in a thread of this process, by default at any free port. Raises
    `LifecycleError` if TensorBoard is not installed or the port is taken."""
    chosen, path = port or _free_port(), f"/{secrets.token_urlsafe(16)}"
    _launch(spec, ["--path_prefix", path, "--host", "127.0.0.1", "--port", str(chosen)])
    return TensorboardServer(chosen, path)


def application(spec: str) -> WSGIApplication:
    """Return the application of a TensorBoard, for a server that refuses other users. Raises
    `LifecycleError` if it is not installed."""
    made: list[_Unserved] = []

    def keep(application: WSGIApplication, flags: object) -> _Unserved:
        made.append(_Unserved(application))
        return made[0]

    _launch(spec, [], server_class=keep)
    return made[0].application


class _Unserved(NamedTuple):
    """Takes the place of TensorBoard's own server, and serves nothing."""

    application: WSGIApplication

    def serve_forever(self) -> None:
        """Return at once."""

    def get_url(self) -> str:
        """There is no address."""
        return ""


def _launch(spec: str, options: Sequence[str], **more: Any) -> None:
    require("tensorboard")
    from tensorboard import program

    board = program.TensorBoard(**more)
    # Arguments of a process can be read by everybody: the secret is in none.
    argv = ["tensorboard", "--logdir_spec", spec, "--load_fast=false", *options]
    board.configure([*argv, "--reload_interval", str(RELOAD_SECONDS)])
    try:
        board.launch()
    except program.TensorBoardServerException as error:
        raise LifecycleError(f"TensorBoard can't start: {error}") from error


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port
