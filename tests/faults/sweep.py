"""A fault at every call in turn: each kind of process does its work while one call fails.

Run with `fault_counter.c` preloaded: `python -m tests.faults.sweep KIND FOLDER STRIDE`.
"""

from __future__ import annotations

import ctypes
import errno
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm import core
from detslurm.core import CheckpointContext, DistributedContext
from detslurm.core._checkpoint_records import CheckpointRecords
from detslurm.core._retries import retrying
from detslurm.exec.execution import Execution
from detslurm.exec.outcome import AttemptResult
from detslurm.exec.runner import Runner
from detslurm.searcher import Search, State
from detslurm.storage import SharedFS
from detslurm.store import EventLog, RunLog, fold_experiment, retry, trial_metrics
from tests.core.jobs import enter
from tests.core.ranks import on_ranks
from tests.pytorch.managed import Managed
from tests.sdk.scenes import Scene

CODES = (errno.EIO, errno.ESTALE, errno.EACCES)
LEFTOVER = "2d931510-d99f-494a-8c67-87feb05e1594"


class Faults:
    """The counter that is preloaded into this process."""

    def __init__(self) -> None:
        self._library: Any = ctypes.CDLL(None)
        self._number = 0

    def choose(self, number: int, code: int) -> None:
        """Let the call with this number fail."""
        self._number = number
        self._library.fault_choose(ctypes.c_long(number), code)

    @contextmanager
    def due(self) -> Iterator[None]:
        """Count the calls of the body."""
        self._library.fault_count(1)
        try:
            yield
        finally:
            self._library.fault_count(0)

    @property
    def come(self) -> bool:
        """Whether there were as many calls."""
        return int(self._library.fault_seen()) >= self._number


FAULTS = Faults()


def leave_checkpoint(managed: Managed, checkpoints: Path) -> None:
    """A run that died while it saved a checkpoint."""
    with managed.run(), RunLog.open(managed.trial.records_path(1)) as records:
        records.append({"t": "checkpoint_started", "uuid": LEFTOVER})
    (checkpoints / f"{LEFTOVER}.partial").mkdir(parents=True)


def source_of(root: Path) -> Path:
    """What a script uploads: a nested file, a protected file, a link to nothing."""
    source = root / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_text("deep")
    (source / "protected").write_text("protected")
    (source / "protected").chmod(0o444)
    (source / "nowhere").symlink_to("gone")
    return source


def write_own(file: Path, text: str) -> None:
    """Write a file as the user's code does, which has no retries."""
    while True:
        try:
            file.write_text(text)
            return
        except OSError:
            pass  # the fault was here


def core_api(root: Path, patch: pytest.MonkeyPatch) -> None:
    """A script that begins again after a run that died."""
    managed, checkpoints = Managed(root, patch), root / "checkpoints"
    leave_checkpoint(managed, checkpoints)
    source = source_of(root)
    with managed.run(), FAULTS.due(), core.init() as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
        first = context.checkpoint.upload(source, {"steps_completed": 1})
        with context.checkpoint.store_path({"steps_completed": 2}) as (path, second):
            write_own(path / "weights", "second")
        assert context.checkpoint.get_metadata(first) == {"steps_completed": 1}
        context.checkpoint.download(first, root / "copy")
        with context.checkpoint.restore_path(second) as path:
            assert path.name == second
        context.checkpoint.delete(first)
        context.train.report_validation_metrics(2, {"loss": 0.25})
    assert (root / "copy" / "deep" / "file").read_text() == "deep"
    assert sorted(p.name for p in checkpoints.iterdir()) == sorted([second, "tensorboard"])
    assert [found.uuid for found in managed.view().checkpoints] == [first, second]
    assert managed.steps("training") == [1] and managed.steps("validation") == [2]
    assert any(file.is_file() for file in (checkpoints / "tensorboard").rglob("*"))


def runner(root: Path, patch: pytest.MonkeyPatch) -> None:
    """A runner of two trials, whose code ends well at once."""
    patch.setenv("DETSLURM_LOCAL_JOB_ID", "7")
    patch.setattr(Execution, "_attempt", lambda *_: AttemptResult(exit_code=0, began=True))
    experiment = Scene(root / "store").experiment(2)
    with FAULTS.due():
        assert Runner(experiment.path, 0, 2).run() == 0
    ids = [row.id for row in fold_experiment(experiment).trials]
    runs = [run for number in ids for run in experiment.trial(number).runs()]
    assert [run.outcome for run in runs] == ["completed", "completed"]


def search(root: Path, patch: pytest.MonkeyPatch) -> None:
    """A trial of a search: reports decide, and are each recorded once."""
    searcher = {"name": "async_halving", "metric": "loss", "smaller_is_better": True}
    searcher |= {"max_length": {"batches": 9}, "num_rungs": 2, "divisor": 3, "max_trials": 3}
    config = {"searcher": searcher, "hyperparameters": {}}
    job = enter(root, patch, config, search=True)
    log: EventLog[State] = EventLog(job.experiment.search, Search(config))
    log.commit([{"e": "work_requested", "worker": "1"}])
    with FAULTS.due(), core.init() as context:
        for operation in context.searcher.operations():
            context.train.report_validation_metrics(operation.length, {"loss": 0.5})
            operation.report_completed(0.5)
    job.flag.close()
    found = log.catch_up().trials[0]
    assert (found.reached, found.metric) == (3, 0.5)
    assert [row.steps for row in trial_metrics(job.trial, "validation")] == [3]


def tensorboard(root: Path, patch: pytest.MonkeyPatch) -> None:
    """A script that uploads its TensorBoard files itself."""
    managed = Managed(root, patch)
    manual = core.TensorboardMode.MANUAL
    with managed.run(), FAULTS.due(), core.init(tensorboard_mode=manual) as context:
        path = context.train.get_tensorboard_path()
        (path / "events").write_text("events")
        context.train.upload_tensorboard_files()
    [stored] = (root / "checkpoints").rglob("events")
    assert stored.read_text() == "events"


class Notes:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def commit(self, record: dict[str, Any]) -> None:
        self.records.append(record)


def sharded(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Ranks of two nodes that save and load together."""
    storage, notes = SharedFS(root / "checkpoints"), Notes()

    def rank(dist: DistributedContext) -> list[str]:
        recorder: Any = notes if dist.rank == 0 else Notes()
        checkpoint = CheckpointContext(
            dist, retrying(storage), CheckpointRecords(recorder, needs_steps=True)
        )
        own = root / f"rank{dist.rank}"
        first = checkpoint.upload(own, {"steps_completed": 1}, shard=True)
        with checkpoint.store_path({"steps_completed": 2}, shard=True) as (path, second):
            write_own(path / str(dist.rank), "second")
        checkpoint.download(second, root / f"copy{dist.cross_rank}")
        return [first, second]

    for number in range(2):
        own = root / f"rank{number}"
        own.mkdir(parents=True)
        (own / str(number)).write_text("first")
        (own / "common").write_text("the same")
    with FAULTS.due():
        ids: list[Any] = on_ranks(2, rank, nodes=2)
    for failure in (found for found in ids if isinstance(found, Exception)):
        raise failure
    assert ids[0] == ids[1] == [r["uuid"] for r in notes.records if r["t"] == "checkpoint"], ids
    for storage_id in ids[0]:
        assert {"0", "1"} <= storage.resources(storage_id).keys()
    assert all((root / "copy1" / str(number)).read_text() == "second" for number in range(2))


def pytorch_trial(root: Path, patch: pytest.MonkeyPatch) -> None:
    """A PyTorchTrial that saves, and goes on from its checkpoint in another run."""
    from detslurm import pytorch
    from tests.pytorch.trials import Regression

    trained_by(root, patch, pytorch, Regression)


def deepspeed_trial(root: Path, patch: pytest.MonkeyPatch) -> None:
    """The same of a DeepSpeedTrial."""
    patch.setenv("DS_ACCELERATOR", "cpu")
    from detslurm.pytorch import deepspeed
    from detslurm.pytorch.deepspeed._connect import restored_environment
    from tests.pytorch.deepspeed.settings import config
    from tests.pytorch.deepspeed.trials import Zero

    with restored_environment():
        trained_by(root, patch, deepspeed, partial(Zero, ds_config=config()))


def trained_by(root: Path, patch: pytest.MonkeyPatch, api: Any, trial: Callable[..., Any]) -> None:
    """Train two batches, the second of them in another run."""
    searcher = {"name": "single", "metric": "loss", "max_length": {"batches": 1}}
    managed = Managed(root, patch, {"searcher": searcher})
    managed.experiment.code.mkdir()
    for batches in (1, 2):
        searcher["max_length"] = {"batches": batches}
        with managed.run(), FAULTS.due(), api.init() as context:
            latest = context._core.info.latest_checkpoint
            api.Trainer(trial(context), context).fit(latest_checkpoint=latest)
    assert managed.checkpoints() == [1, 2], managed.checkpoints()
    left = {path.name for path in (root / "checkpoints").iterdir()}
    assert left == {"tensorboard", *(found.uuid for found in managed.view().checkpoints)}


KINDS: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "core_api": core_api,
    "runner": runner,
    "search": search,
    "tensorboard": tensorboard,
    "sharded": sharded,
    "pytorch_trial": pytorch_trial,
    "deepspeed_trial": deepspeed_trial,
}


def sweep(kind: Callable[[Path, pytest.MonkeyPatch], None], folder: Path, stride: int) -> int:
    """Run the kind with each call failing in turn; returns how many of the faults cost anything."""
    lost = 0
    for number in count(1, stride):
        code = CODES[number // stride % len(CODES)]
        FAULTS.choose(number, code)
        with pytest.MonkeyPatch.context() as patch:
            try:
                kind(folder / "run", patch)
            except Exception:
                lost += 1
                print(f"call {number}, {errno.errorcode[code]}:\n{traceback.format_exc()}")
        if not FAULTS.come:
            print(f"{lost} faults did harm, of {number // stride}")
            return lost
        shutil.rmtree(folder / "run")
    raise AssertionError("unreachable")


if __name__ == "__main__":
    vars(retry)["time"] = SimpleNamespace(sleep=lambda seconds: None)
    sys.exit(min(1, sweep(KINDS[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]))))
