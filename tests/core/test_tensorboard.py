"""TensorBoard files: what TensorBoard reads in them, stored beside the checkpoints."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from detslurm import core
from detslurm.core import TensorboardMode, _tensorboard, _tensorboard_events
from detslurm.sdk.client import Client
from tests.cluster.waiting import wait_for

from .jobs import Job, enter


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tensorboard, "_WRITE_EVERY", 0.02)


def stored(job: Job) -> set[str]:
    """The trial's TensorBoard files in the checkpoint storage."""
    folder = job.checkpoints / "tensorboard" / "experiment" / "1" / "trial" / str(job.trial.id)
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def scalars(job: Job) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself reads from the stored files."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = job.checkpoints / "tensorboard" / "experiment" / "1" / "trial" / str(job.trial.id)
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


class TestAuto:
    """TensorboardMode.AUTO, which is the default."""

    def test_reported_metrics_can_be_seen_in_tensorboard(self, job: Job) -> None:
        """Every number of every group, nested ones too; text and lists are left out."""
        pytest.importorskip("tensorboard")
        with core.init() as context:
            context.train.report_training_metrics(1, {"loss": 0.5, "name": "x", "list": [1]})
            context.train.report_training_metrics(2, {"loss": 0.25})
            context.train.report_validation_metrics(2, {"acc": {"top1": 1}})
            context.train.report_metrics("mine", 3, {"big": math.inf, "größer": -1e300})
        assert scalars(job) == {
            "training/loss": [(1, 0.5), (2, 0.25)],
            "validation/acc/top1": [(2, 1.0)],
            "mine/big": [(3, math.inf)],
            "mine/größer": [(3, -math.inf)],
        }

    def test_the_tags_may_be_determineds(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        """One variable chooses; those of validations begin with `val`."""
        pytest.importorskip("tensorboard")
        monkeypatch.setenv("DETSLURM_TENSORBOARD_TAGS", "determined")
        with core.init() as context:
            context.train.report_training_metrics(1.0, {"loss": 1})  # type: ignore[arg-type]
            context.train.report_validation_metrics(1, {"acc": {"top1": 1}, "val_x": 1, "loss": 1})
            context.train.report_metrics("mine", 1, {"x": 1})
            for steps in (1.5, math.nan, "1"):
                with pytest.raises(TypeError, match="whole number"):
                    context.train.report_training_metrics(steps, {"late": 1})  # type: ignore[arg-type]
        names = ("loss", "val_acc/top1", "val_x", "val_loss", "mine_x")
        assert set(scalars(job)) == {f"Determined/{name}" for name in names}

    def test_a_checkpoint_brings_the_files_to_the_storage(self, job: Job) -> None:
        """Own files of the code too, soon after it was saved and again at the end."""
        with core.init() as context:
            path = context.train.get_tensorboard_path()
            (path / "plots").mkdir()
            (path / "plots" / "mine").write_text("1")
            with context.checkpoint.store_path({"steps_completed": 1}):
                pass
            wait_for(lambda: "plots/mine" in stored(job), 120, "the upload")
            (path / "late").write_text("2")
        assert stored(job) == {"plots/mine", "late"}

    def test_nothing_of_tensorboard_is_imported(self, job: Job) -> None:
        """Its writer would import boto3 and numpy in each trial: thousands of look-ups."""
        code = (
            "import sys\nfrom detslurm import core\nwith core.init() as context:\n"
            "    context.train.report_training_metrics(1, {'loss': 0.5})\n"
            "assert not {'tensorboard', 'numpy', 'boto3'} & sys.modules.keys(), 'imported'"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        assert len(stored(job)) == 1

    def test_uploading_by_hand_is_refused(self, job: Job) -> None:
        """There is nothing left to do by hand in this mode."""
        with core.init() as context, pytest.raises(RuntimeError, match="MANUAL"):
            context.train.upload_tensorboard_files()

    def test_training_goes_on_without_tensorboard(
        self, job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It says once what to install; metrics are recorded all the same."""
        monkeypatch.setattr(_tensorboard_events, "find_spec", lambda _: None)
        with caplog.at_level("INFO"), core.init() as context:
            context.train.report_training_metrics(1, {"loss": 0.5})
            wait_for(lambda: "detslurm[tensorboard]" in caplog.text, 120, "the advice")
            context.train.report_training_metrics(2, {"loss": 0.5})
        assert stored(job) == set()

    def test_a_storage_that_fails_is_a_warning(
        self, job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """TensorBoard files never end a training."""
        with core.init() as context:
            job.checkpoints.rmdir()
            job.checkpoints.write_text("a file in the way")
            (context.train.get_tensorboard_path() / "x").write_text("1")
        assert "can't be stored" in caplog.text


class TestManual:
    """TensorboardMode.MANUAL."""

    def test_nothing_happens_by_itself(self, job: Job) -> None:
        """Neither metrics nor files are stored."""
        with core.init(tensorboard_mode=TensorboardMode.MANUAL) as context:
            context.train.report_training_metrics(1, {"loss": 0.5})
            (context.train.get_tensorboard_path() / "x").write_text("1")
            with context.checkpoint.store_path({"steps_completed": 1}):
                pass
        assert stored(job) == set()

    def test_selector_and_mangler(self, job: Job) -> None:
        """The selector takes relative paths, the mangler names what is stored by rank."""
        with core.init(tensorboard_mode=TensorboardMode.MANUAL) as context:
            path = context.train.get_tensorboard_path()
            (path / "deep").mkdir()
            for name in ("deep/a.json", "b.json", "c.txt"):
                (path / name).write_text("1")
            context.train.upload_tensorboard_files(
                selector=lambda p: p.suffix == ".json",
                mangler=lambda p, rank: p.with_name(f"{p.stem}#{rank}{p.suffix}"),
            )
            assert stored(job) == {"deep/a#0.json", "b#0.json"}
            context.train.upload_tensorboard_files()
        assert stored(job) == {"deep/a#0.json", "b#0.json", "c.txt"}

    def test_only_what_has_changed_is_stored_again(self, job: Job) -> None:
        """A second call brings new and changed files."""
        brought: list[Path] = []

        def note(path: Path, rank: int) -> Path:
            brought.append(path)
            return path

        with core.init(tensorboard_mode=TensorboardMode.MANUAL) as context:
            path = context.train.get_tensorboard_path()
            (path / "a").write_text("1")
            (path / "b").write_text("1")
            context.train.upload_tensorboard_files(mangler=note)
            (path / "b").write_text("22")
            context.train.upload_tensorboard_files(mangler=note)
        assert brought == [Path("a"), Path("b"), Path("b")]

    def test_a_mangler_must_stay_inside(self, job: Job) -> None:
        """A path that leads elsewhere is refused."""
        with core.init(tensorboard_mode=TensorboardMode.MANUAL) as context:
            (context.train.get_tensorboard_path() / "a").write_text("1")
            for bad in (Path("../a"), Path("/a")):
                with pytest.raises(ValueError, match="mangler"):
                    context.train.upload_tensorboard_files(mangler=lambda *_, bad=bad: bad)


def test_without_recording_there_is_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """get_tensorboard_path() says so; uploading does nothing."""
    monkeypatch.setenv("DETSLURM_TRACK", "0")
    with core.init(tensorboard_mode=TensorboardMode.MANUAL) as context:
        with pytest.raises(ValueError, match="not recorded"):
            context.train.get_tensorboard_path()
        context.train.upload_tensorboard_files()


def test_by_hand_files_are_kept_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded script's own files land beside its checkpoints."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path))
    with core.init() as context:
        (context.train.get_tensorboard_path() / "mine").write_text("1")
        context.train.report_training_metrics(1, {"loss": 1})
    (found,) = [p for p in (tmp_path / "checkpoints").rglob("*") if p.is_file()]
    assert found == tmp_path / "checkpoints/tensorboard/experiment/1/trial/1/mine"


@pytest.mark.parametrize("saves", [True, False])
def test_by_hand_files_are_kept_while_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: bool
) -> None:
    """With each checkpoint and from time to time: a script that is killed leaves them, too."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path))
    monkeypatch.setattr(_tensorboard, "_UPLOADS_APART", 10**9 if saves else 1)
    kept = tmp_path / "checkpoints/tensorboard/experiment/1/trial/1/mine"
    with core.init() as context:
        (context.train.get_tensorboard_path() / "mine").write_text("1")
        if saves:
            with context.checkpoint.store_path({"steps_completed": 1}):
                pass
        else:
            context.train.report_training_metrics(1, {"loss": 1})
        wait_for(kept.exists, 120, "the upload")
    assert [*kept.parent.iterdir()] == [kept]


def test_stores_that_share_a_storage_keep_their_files_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each store counts from 1: deleting one's experiment 1 leaves the other's files."""
    storage = {"type": "shared_fs", "host_path": str(tmp_path / "both")}
    for name in ("mine", "yours"):
        job = enter(tmp_path / name, monkeypatch, {"checkpoint_storage": storage})
        with core.init(tensorboard_mode=TensorboardMode.MANUAL) as context:
            (context.train.get_tensorboard_path() / name).write_text("1")
            context.train.upload_tensorboard_files()
        job.trial.write_end(1, {"outcome": "completed", "reason": "", "time": 1.0})

    def left() -> set[str]:
        return {path.name for path in (tmp_path / "both").rglob("*") if path.is_file()}

    assert left() == {"mine", "yours"}
    Client(tmp_path / "mine").experiment(1).delete()
    assert left() == {"yours"}
    assert len([*(tmp_path / "both").rglob("tensorboard-*")]) == 1
