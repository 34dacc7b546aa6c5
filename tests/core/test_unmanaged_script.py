"""The Core API in an unmanaged script: recorded in the store, with every documented error."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

import detslurm as det
from detslurm import core, errors
from detslurm.config import ExperimentConfig
from detslurm.core import _unmanaged_script
from detslurm.experimental import core_v2
from detslurm.store import (
    Store,
    StoreError,
    StoreFull,
    TrialView,
    fold_experiment,
    fold_facts,
    fold_trial,
    trial_metrics,
)
from detslurm.store.checkpoint_facts import keep
from detslurm.store.checkpoint_index import row_of
from tests.core.ranks import on_ranks
from tests.store.faults import failing


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    return tmp_path / "store"


def the_trial(root: Path) -> TrialView:
    return fold_trial(Store(root).experiment(1).trial(1))


def test_an_unmanaged_script_is_recorded(root: Path) -> None:
    """Metrics, checkpoints, progress and the end of the script are in the store afterwards."""
    with core.init() as context:
        assert context.info is None
        context.train.report_training_metrics(1, {"loss": 0.5})
        context.train.report_validation_metrics(1, {"accuracy": 0.9})
        context.train.report_progress(0.5)
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "weights").write_bytes(b"w")
    trial = Store(root).experiment(1).trial(1)
    view = the_trial(root)
    assert view.state == "COMPLETED"
    assert [(c.uuid, c.steps) for c in view.checkpoints] == [(uuid, 1)]
    assert view.checkpoints[0].resources["weights"] == 1
    rows = [(row.group, row.steps, row.metrics) for row in trial_metrics(trial)]
    assert sorted(rows) == [
        ("training", 1, {"loss": 0.5}),
        ("validation", 1, {"accuracy": 0.9}),
    ]
    experiment = Store(root).experiment(1)
    assert fold_experiment(experiment).state == "COMPLETED"
    assert (
        ExperimentConfig.from_dict(experiment.config()).to_dict()["name"]
        == experiment.created().name
    )


def test_recording_can_be_switched_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With DETSLURM_TRACK=0 the script runs and no store appears."""
    monkeypatch.setenv("DETSLURM_TRACK", "0")
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
    assert not root.exists()


def test_unrecorded_checkpoints_are_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else who made the directory first could put in what is unpickled later."""
    monkeypatch.setenv("DETSLURM_TRACK", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with core.init() as context, context.checkpoint.store_path() as (path, _):
        assert path.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "detslurm-12345-checkpoints").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        core.init()


def test_a_store_that_cannot_be_written_does_not_stop_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file where the store should be costs the tracking, not the training. Where its checkpoints
    are now is said: no later start of a job finds them on another node."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("DETSLURM_ROOT", str(blocker / "store"))
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
    assert f"go to {tmp_path}/detslurm-{os.getuid()}-checkpoints on this node" in caplog.text


def test_all_ranks_save_where_the_chief_does(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone finds that nothing can be recorded."""

    def save(dist: core.DistributedContext) -> Path:
        with core.init(distributed=dist) as context:
            with context.checkpoint.store_path({"steps_completed": 1}, shard=True) as (path, _):
                (path / str(dist.rank)).touch()
            return path

    def full(*_: object) -> NoReturn:
        raise StoreError("no space left")

    first, second = on_ranks(2, save)
    assert first == second
    assert isinstance(first, Path)
    assert first.parent == root / "checkpoints"
    monkeypatch.setattr(_unmanaged_script, "unmanaged_trial", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = on_ranks(2, save)
    assert first == second
    assert isinstance(first, Path)
    assert first.parent == tmp_path / f"detslurm-{os.getuid()}-checkpoints"


def test_an_integer_of_any_size_is_a_metric(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is recorded as it is, infinite where that takes a float, and no line about it raises."""
    caplog.set_level("INFO", logger="detslurm")
    with core.init() as context:
        with context.checkpoint.store_path({"steps_completed": 1}):
            pass
        context.train.report_training_metrics(1, {"n": -(10**400)})
        context.train.report_validation_metrics(1, {"loss": 10**400})
    lines = [record.getMessage() for record in caplog.records]
    assert {"step 1: n -1.000e+400", "validation after step 1: loss 1.000e+400"} <= {*lines}
    assert not [record for record in caplog.records if record.levelname != "INFO"]
    made = Store(root).experiment(1)
    view = fold_trial(made.trial(1), fold_facts(made).context(1))
    assert view.best_validation is not None and view.best_validation.value == math.inf
    assert view.best_validation.metrics == {"loss": 10**400}
    (saved,) = view.checkpoints
    assert row_of(saved).metrics == {"loss": math.inf}


def test_an_exception_is_recorded_as_the_reason(root: Path) -> None:
    """A script that raises ends as ERROR with the exception's text."""
    with pytest.raises(ZeroDivisionError), core.init():
        raise ZeroDivisionError("no luck")
    view = the_trial(root)
    assert view.state == "ERROR"
    assert view.end_reason == "ZeroDivisionError: no luck"


def test_invalid_hp_exits_with_0(root: Path) -> None:
    """The exception is swallowed, the process ends successfully, the reason is in the store."""
    script = (
        "import detslurm as det\n"
        "with det.core.init() as c:\n    raise det.InvalidHP('too wide')\nprint('not reached')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    view = the_trial(root)
    assert (view.state, view.early_exit, view.end_reason) == ("COMPLETED", "invalid_hp", "too wide")


def test_invalid_hp_takes_a_text_only() -> None:
    """InvalidHP(5) is a mistake of the caller's."""
    with pytest.raises(TypeError):
        det.InvalidHP(5)  # type: ignore[arg-type]


def test_metrics_survive_as_they_are(root: Path) -> None:
    """Scalars of torch, NaN, infinities, nesting, text; bytes are dropped."""
    import torch

    values: dict[str, Any] = {
        "tensor": torch.tensor(1.5),
        "vector": torch.tensor([1, 2]),
        "nan": math.nan,
        "inf": -math.inf,
        "nested": {"a": [1, (2.5, None)]},
        "text": "x",
        "bytes": b"gone",
        "flag": True,
    }
    with core.init() as context:
        context.train.report_metrics("mine", 3, values)
        values["text"] = "changed after the report"
    (row,) = trial_metrics(Store(root).experiment(1).trial(1), "mine")
    assert math.isnan(row.metrics.pop("nan"))
    assert row.metrics == {
        "tensor": 1.5,
        "vector": [1, 2],
        "inf": -math.inf,
        "nested": {"a": [1, [2.5, None]]},
        "text": "x",
        "flag": True,
    }


def test_bad_reports_raise(root: Path) -> None:
    """Each documented mistake raises where it is made, and names what is wrong."""
    with core.init() as context:
        train = context.train
        with pytest.raises(RuntimeError, match="'loss' returned an invalid scalar value: None"):
            train.report_validation_metrics(1, {"loss": None})
        with pytest.raises(ValueError, match="dot"):
            train.report_metrics("a.b", 1, {})
        with pytest.raises(TypeError, match="steps_completed"):
            train.report_training_metrics(1.5, {})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a mapping of names to values is needed, not None"):
            train.report_training_metrics(1, None)  # type: ignore[arg-type]
        train.report_training_metrics(2, {"a": 1})
        train.report_training_metrics(2, {"b": 2})
        with pytest.raises(ValueError, match="a were already reported at step 2"):
            train.report_training_metrics(2, {"a": 1})
        for progress in (-0.1, 1.1):
            with pytest.raises(ValueError, match="between 0 and 1"):
                train.report_progress(progress)
    (row,) = trial_metrics(Store(root).experiment(1).trial(1), "training")
    assert row.metrics == {"a": 1, "b": 2}


def test_a_lack_of_the_searchers_metric_is_told_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A trial with a misspelt metric trains to its end, and no checkpoint of it is the best."""
    core_v2.init(config=core_v2.Config(searcher={"name": "single", "metric": "val_loss"}))
    try:
        for step in (1, 2):
            core_v2.train.report_training_metrics(step, {"loss": 0.5})
            core_v2.train.report_validation_metrics(step, {"loss": 0.5, "acc": 1})
        core_v2.train.report_validation_metrics(3, {"val_loss": 0.5})
    finally:
        core_v2.close()
    (told,) = [text for text in caplog.messages if "searcher.metric" in text]
    assert told.startswith("validation metrics without 'val_loss'")
    assert told.endswith("reported were 'loss', 'acc'")


def test_steps_that_begin_again_raise(root: Path) -> None:
    """They would replace what the epoch before has reported; between others they are free."""
    with core.init() as context:
        train = context.train
        for steps in (100, 200, 300):
            train.report_training_metrics(steps, {"a": steps})
        with pytest.raises(ValueError, match="a were already reported at step 100; steps count on"):
            train.report_training_metrics(100, {"a": 1})
        train.report_training_metrics(100, {"b": 1})
        train.report_training_metrics(150, {"a": 150})
        train.report_metrics("mine", 100, {"a": 1})
    rows = trial_metrics(Store(root).experiment(1).trial(1), "training")
    assert {row.steps: row.metrics for row in rows} == {
        100: {"a": 100, "b": 1}, 150: {"a": 150}, 200: {"a": 200}, 300: {"a": 300},
    }  # fmt: skip


def test_a_validation_outlives_its_process(root: Path) -> None:
    """Whatever kills it right after the report."""
    reports = (
        "import os; from detslurm import core; context = core.init();"
        "context.train.report_validation_metrics(7, {'loss': 0.5}); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", reports], check=True)
    (row,) = trial_metrics(Store(root).experiment(1).trial(1), "validation")
    assert (row.steps, row.metrics) == (7, {"loss": 0.5})


def test_metadata_is_replaced_as_a_whole(root: Path) -> None:
    """get_metadata gives what the last set_metadata set."""
    with core.init() as context:
        assert context.train.get_metadata() is None
        assert context.train.set_metadata({"a": 1}) == {"a": 1}
        context.train.set_metadata({"b": 2})
        assert context.train.get_metadata() == {"b": 2}
        context.train.set_status("warming up")
    view = the_trial(root)
    assert (view.metadata, view.status) == ({"b": 2}, "warming up")


def test_what_readers_would_not_take_is_refused_at_the_call(root: Path, tmp_path: Path) -> None:
    """A malformed record would stop the retention of the trial's checkpoints."""
    with core.init() as context:
        with pytest.raises(TypeError, match="a mapping of names to values"):
            context.train.set_metadata([1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected str"):
            context.alert(title=0)  # type: ignore[arg-type]
        for steps in (1 << 63, -(1 << 63)):
            with pytest.raises(ValueError, match="less than 2"):
                context.train.report_training_metrics(steps, {"loss": 1.0})
            with pytest.raises(ValueError, match="less than 2"):
                context.checkpoint.upload(tmp_path, {"steps_completed": steps})
        context.train.report_training_metrics((1 << 63) - 1, {"loss": 1.0})
    assert not the_trial(root).problems


def test_a_trial_that_another_script_goes_on_with_keeps_its_metadata(root: Path) -> None:
    """On every rank, so that what is read, changed and set again loses nothing."""
    config = core_v2.Config(external_experiment_id="e", external_trial_id="t")
    with core_v2.init_context(config=config) as context:
        assert context.train.get_metadata() is None
        context.train.set_metadata({"a": 1})

    def body(dist: core.DistributedContext) -> dict[str, Any] | None:
        with core_v2.init_context(config=config, distributed=dist) as context:
            return context.train.get_metadata()

    assert on_ranks(2, body) == [{"a": 1}] * 2


class TestCheckpoints:
    """upload, store_path, download, restore_path, get_metadata and delete."""

    def test_upload_and_download_give_the_same_files(self, root: Path, tmp_path: Path) -> None:
        """Nested files and empty directories make the round trip; metadata.json is beside them."""
        source, target = tmp_path / "source", tmp_path / "target"
        (source / "deep" / "er").mkdir(parents=True)
        (source / "empty").mkdir()
        (source / "deep" / "er" / "file").write_text("x")
        with core.init() as context:
            uuid = context.checkpoint.upload(source, {"steps_completed": 5, "extra": [1]})
            context.checkpoint.download(uuid, target)
            assert context.checkpoint.get_metadata(uuid) == {"steps_completed": 5, "extra": [1]}
        assert (target / "deep" / "er" / "file").read_text() == "x"
        assert (target / "empty").is_dir()
        assert not (source / "metadata.json").exists()
        assert json.loads((target / "metadata.json").read_text())["steps_completed"] == 5
        (view,) = the_trial(root).checkpoints
        assert set(view.resources) == {
            "deep/", "deep/er/", "deep/er/file", "empty/", "metadata.json",
        }  # fmt: skip

    def test_a_selector_takes_files_with_their_directories(
        self, root: Path, tmp_path: Path
    ) -> None:
        """What the selector refuses is not stored, metadata.json included."""
        source = tmp_path / "source"
        (source / "a").mkdir(parents=True)
        for name in ("a/keep", "a/drop", "drop"):
            (source / name).write_text(name)
        with core.init() as context:
            uuid = context.checkpoint.upload(
                source, {"steps_completed": 1}, selector=lambda name: name.endswith("keep")
            )
            with context.checkpoint.restore_path(uuid) as path:
                assert (path / "a" / "keep").read_text() == "a/keep"
            context.checkpoint.download(uuid, tmp_path / "t", selector=lambda name: False)
            assert list((tmp_path / "t").iterdir()) == []
        assert set(the_trial(root).checkpoints[0].resources) == {"a/", "a/keep"}

    def test_a_block_that_raises_leaves_nothing(self, root: Path) -> None:
        """No record and no directory: a half-written checkpoint can't be taken for one."""
        with core.init() as context:
            with (
                pytest.raises(OSError, match="disk"),
                context.checkpoint.store_path({"steps_completed": 1}) as (path, _),
            ):
                (path / "half").write_text("x")
                raise OSError("disk")
            assert not path.exists()
        assert the_trial(root).checkpoints == ()

    def test_a_record_that_waits_for_space_tells_of_what_is_there(self, root: Path) -> None:
        """It may be written later than the save that failed: the files stay for it."""
        with core.init() as context:
            with (
                contextlib.ExitStack() as full,
                pytest.raises(StoreFull, match="no space"),
                context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid),
            ):
                (path / "weights").write_text("w")
                full.enter_context(failing("pwrite", errno.ENOSPC, times=10**6))
            context.train.report_training_metrics(2, {"loss": 1.0})
        (listed,) = the_trial(root).checkpoints
        assert (listed.uuid, listed.steps) == (uuid, 1)
        assert (root / "checkpoints" / uuid / "weights").read_text() == "w"

    def test_delete_removes_files_and_record(self, root: Path) -> None:
        """A deleted checkpoint can't be restored, read or deleted again."""
        with core.init() as context:
            checkpoint = context.checkpoint
            with checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
                (path / "f").write_text("x")
            checkpoint.delete(uuid)
            assert not path.exists()
            with (
                pytest.raises(errors.CheckpointNotFound, match=uuid),
                checkpoint.restore_path(uuid),
            ):
                pass
            with pytest.raises(errors.CheckpointNotFound):
                checkpoint.get_metadata(uuid)
            with pytest.raises(errors.CheckpointNotFound):
                checkpoint.delete(uuid)
        facts = fold_facts(Store(root).experiment(1))
        trial = fold_trial(Store(root).experiment(1).trial(1), facts.context(1))
        assert [c.state for c in trial.checkpoints] == ["DELETED"]

    def test_what_is_needed_is_not_deleted(
        self, root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A checkpoint that somebody has registered meanwhile stays; the script goes on."""
        with core.init() as context:
            with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
                (path / "f").write_text("x")
            keep(Store(root).experiment(1), [uuid], by="model m version 1")
            context.checkpoint.delete(uuid)
            assert context.checkpoint.get_metadata(uuid) == {"steps_completed": 1}
        assert f"{uuid} is not deleted: model m version 1 needs it" in caplog.text

    def test_what_another_experiment_has_saved_is_not_deleted(
        self, root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Such as what a trial began with: only its own experiment knows what needs it."""
        with core.init() as context, context.checkpoint.store_path({"steps_completed": 1}) as (
            path, uuid,
        ):  # fmt: skip
            (path / "f").write_text("x")
        keep(Store(root).experiment(1), [uuid], by="model m version 1")
        with core.init() as context:
            context.checkpoint.delete(uuid)
        assert (root / "checkpoints" / uuid / "f").read_text() == "x"
        assert f"{uuid} is not deleted: the experiment that has saved it needs it" in caplog.text
        assert the_trial(root).checkpoints[0].state == "COMPLETED"

    def test_calls_that_make_no_sense_raise(self, root: Path, tmp_path: Path) -> None:
        """Nothing to upload, a missing directory, an id that is a path."""
        with core.init() as context:
            checkpoint = context.checkpoint
            with pytest.raises(RuntimeError, match="doing nothing at all"):
                checkpoint.upload(None)
            with pytest.raises(RuntimeError, match="at least one rank"):
                checkpoint.upload(None, shard=True)
            with pytest.raises(RuntimeError, match="if selector is not None"):
                checkpoint.upload(None, selector=lambda _: True)
            with pytest.raises(ValueError, match="not a directory"):
                checkpoint.upload(tmp_path / "nowhere")
            with pytest.raises(ValueError, match="not a storage id"):
                checkpoint.delete("../../etc")

    def test_checkpoint_storage_takes_a_path_or_a_file_uri(
        self, root: Path, tmp_path: Path
    ) -> None:
        """Both name the directory that the checkpoints land in; other forms are refused."""
        for form in (str(tmp_path / "a"), f"file://{tmp_path / 'b'}"):
            with core.init(checkpoint_storage=form) as context:
                uuid = context.checkpoint.upload(Path(__file__).parent, {"steps_completed": 1})
            assert (tmp_path / form[-1] / uuid / Path(__file__).name).exists()
        for bad in ("file://host/x", "file:///x?y=1"):
            with pytest.raises(ValueError, match="malformed"):
                core.init(checkpoint_storage=bad)
        with pytest.raises(ValueError, match="path"):
            core.init(checkpoint_storage={"type": "shared_fs", "host_path": "/x"})
        with pytest.raises(TypeError):
            core.init(checkpoint_storage=5)  # type: ignore[arg-type]


class TestSearcher:
    """operations() by hand gives one operation of length 1."""

    def test_one_operation_of_one_epoch(self, root: Path) -> None:
        """It ends after its completion was reported."""
        with core.init() as context:
            lengths = []
            for op in context.searcher.operations():
                lengths.append(op.length)
                op.report_progress(0.5)
                op.report_completed(1.0)
                op.report_progress(op.length)
                with pytest.raises(RuntimeError, match=r"after op\.report_completed"):
                    op.report_progress(0.5)
                with pytest.raises(RuntimeError, match="once"):
                    op.report_completed(1.0)
            assert lengths == [1]
            assert context.searcher.get_configured_units() is core.Unit.EPOCHS


def test_should_preempt_is_false_by_hand(root: Path) -> None:
    """Nobody preempts a script run by hand; before start() the call is an error."""
    context = core.init()
    with pytest.raises(RuntimeError, match="before"):
        context.preempt.should_preempt()
    with context:
        assert context.preempt.should_preempt() is False
        with pytest.raises(RuntimeError, match="twice"):
            context.preempt.start()
