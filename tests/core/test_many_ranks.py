"""Preemption, search and reports when a trial has several ranks."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm import core
from detslurm._base import info
from detslurm._base.flag import PreemptFlag
from detslurm.core import (
    DistributedContext,
    PreemptContext,
    PreemptMode,
    SearcherContext,
    SearcherMode,
    TensorboardMode,
    _recorder,
)
from detslurm.core._lengths import FixedLengths
from detslurm.core._recorder import NullRecorder, Recorder
from detslurm.experimental import core_v2
from detslurm.store import (
    RunLog,
    Store,
    checkpoint_facts,
    fold_experiment,
    fold_facts,
    fold_trial,
    read_records,
    trial_metrics,
)
from detslurm.store.best_validation import BestValidation
from detslurm.store.columns import metric_columns
from detslurm.store.errors import StoreFull

from .jobs import Job
from .ranks import on_ranks


class TestPreemptModes:
    """Who may ask, and whose answer counts."""

    def flags(self) -> list[PreemptFlag]:
        """One flag per node; only the second node's is up."""
        flags = [PreemptFlag.create(), PreemptFlag.create()]
        flags[1].request_preemption()
        return flags

    def ask(self, mode: PreemptMode, flags: list[PreemptFlag]) -> list[Any]:
        """What each of four ranks on two nodes is told."""

        def body(dist: DistributedContext) -> bool:
            flag = flags[dist.cross_rank]
            context = PreemptContext(dist, flag, mode).start()
            return context.should_preempt()

        return on_ranks(4, body, nodes=2)

    def test_workers_ask_chief(self) -> None:
        """The chief's answer is everybody's, whatever a worker's own node says."""
        flags = self.flags()
        assert self.ask(PreemptMode.WorkersAskChief, flags) == [False] * 4
        flags[0].request_preemption()
        assert self.ask(PreemptMode.WorkersAskChief, flags) == [True] * 4
        assert all(flag.acknowledged for flag in flags)

    def test_workers_ask_master(self) -> None:
        """Each rank looks for itself."""
        flags = self.flags()
        assert self.ask(PreemptMode.WorkersAskMaster, flags) == [False, False, True, True]

    def test_chief_only(self) -> None:
        """Workers may not ask."""
        answers = self.ask(PreemptMode.ChiefOnly, self.flags())
        assert answers[0] is False
        for rank in (1, 2, 3):
            assert isinstance(answers[rank], RuntimeError)
            assert f"non-chief worker of rank={rank}" in str(answers[rank])

    def test_without_auto_ack_nothing_is_promised(self) -> None:
        """The promise is the code's own, and the answer stays."""
        flag = PreemptFlag.create()
        flag.request_preemption()

        def body(dist: DistributedContext) -> list[bool]:
            context = PreemptContext(dist, flag).start()
            before = [context.should_preempt(auto_ack=False), flag.acknowledged]
            context.acknowledge_preemption_signal()
            return [*before, flag.acknowledged, context.should_preempt()]

        assert on_ranks(1, body) == [[True, False, True, True]]


class TestSearcherModes:
    """operations() on all ranks, or on the chief."""

    def test_all_ranks_get_the_chiefs_operations(self) -> None:
        """A worker that has read something else in the store follows the chief."""

        def body(dist: DistributedContext) -> list[int]:
            mine = [4, 8] if dist.rank == 0 else [99]
            searcher = SearcherContext(dist, NullRecorder(), FixedLengths(mine), None)
            lengths = []
            for op in searcher.operations():
                lengths.append(op.length)
                assert op.is_chief == (dist.rank == 0)
                if op.is_chief:
                    op.report_progress(1)
                    op.report_completed(0.5)
                else:
                    with pytest.raises(RuntimeError, match="from the chief worker"):
                        op.report_progress(1)
                    with pytest.raises(RuntimeError, match="from the chief worker"):
                        op.report_completed(0.5)
            return lengths

        assert on_ranks(3, body) == [[4, 8]] * 3

    def test_an_open_operation_raises_on_all_ranks(self) -> None:
        """The chief forgot report_completed: no worker waits for it."""

        def body(dist: DistributedContext) -> None:
            for _ in SearcherContext(dist, NullRecorder(), FixedLengths([4]), None).operations():
                pass

        for outcome in on_ranks(2, body):
            assert isinstance(outcome, RuntimeError) and "on each operation" in str(outcome)

    def test_chief_only(self) -> None:
        """The chief iterates alone; a worker is told that it may not."""

        def body(dist: DistributedContext) -> list[int]:
            lengths = []
            searcher = SearcherContext(dist, NullRecorder(), FixedLengths([4]), None)
            for op in searcher.operations(SearcherMode.ChiefOnly):
                op.report_completed(1)
                lengths.append(op.length)
            return lengths

        chief, worker = on_ranks(2, body)
        assert chief == [4]
        assert isinstance(worker, RuntimeError) and "rank=1" in str(worker)


class TestReports:
    """Reports of a managed trial."""

    def test_the_best_validation_counts_what_was_just_reported(self, job: Job) -> None:
        """None at first; then the best of all, at once."""
        with core.init() as context:
            best = context.train.get_experiment_best_validation
            assert best() is None
            context.train.report_validation_metrics(1, {"loss": 0.5, "acc": 3})
            assert best() == 0.5
            context.train.report_validation_metrics(2, {"loss": 0.7})
            assert best() == 0.5
        assert fold_experiment(job.experiment).best_value == 0.5

    def test_what_a_trial_uses_is_recorded_once(
        self, job: Job, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With the checkpoint; where that can't be written, the trial goes on with a warning."""
        used = SimpleNamespace(experiment_id=job.experiment.id, uuid="u")
        row = SimpleNamespace(experiment=99, uuid="v")
        with core.init() as context:
            context.experimental.report_task_using_checkpoint(used)
            context.experimental.report_task_using_checkpoint(used)
            context.experimental.report_task_using_model_version(
                SimpleNamespace(row=row, model_name="m", version=2)
            )
        (fact,) = fold_facts(job.experiment).checkpoints.used
        assert (fact.uuid, fact.trial, fact.model) == ("u", job.trial.id, None)
        assert "the use of checkpoint v can't be recorded" in caplog.text

    def test_alerts_are_recorded_and_logged(
        self, job: Job, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With title, description and level; other levels are refused."""
        with core.init() as context:
            context.alert("Diverged", "loss is NaN", level="warn")
            with pytest.raises(ValueError, match="level"):
                context.alert(level="fatal")
        (alert,) = [r for r in read_records(job.trial.records_path(1)).records if r["t"] == "alert"]
        assert (alert["title"], alert["level"]) == ("Diverged", "warn")
        assert "Diverged: loss is NaN" in caplog.text

    def test_an_unfinished_checkpoint_of_an_earlier_run_is_removed(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a killed run began is gone when the next one starts, also if it began it late; so is
        a directory that was never to be a checkpoint."""
        with core.init() as context:
            saved = context.checkpoint.upload(job.trial.path, {"steps_completed": 1})
            early, late = context.checkpoint._records.begin(), str(uuid.uuid4())
            killed = context.checkpoint._scratch()
            scratch = killed.__enter__()
            with context.checkpoint._scratch() as folder:
                assert scratch is not None and folder is not None and folder.is_dir()
            assert scratch.is_dir() and not folder.exists()
            job.trial.open_run({})
            context._recorder.commit({"t": "checkpoint_started", "uuid": late})
            for storage_id in (early, late):
                context.checkpoint._storage.begin(storage_id)
        monkeypatch.setenv("DET_TRIAL_RUN_ID", "2")
        monkeypatch.setattr(info, "_info", None)
        with core.init():
            assert [path.name for path in job.checkpoints.iterdir()] == [saved]

    @pytest.mark.parametrize("shard", [False, True])
    def test_a_run_that_was_given_up_saves_and_deletes_nothing(self, job: Job, shard: bool) -> None:
        """Another run goes on with the trial: what this one still saves would be in no list, and
        what it deletes may be what the other one goes on from."""
        with core.init() as context:
            kept = context.checkpoint.upload(job.trial.path, {"steps_completed": 1})
            saving = context.checkpoint.store_path({"steps_completed": 1}, shard=shard)
            with pytest.raises(RuntimeError, match="given up"), saving as (path, _):
                (path / "weights").write_text("late")
                job.trial.open_run({})
            with pytest.raises(RuntimeError, match="given up"):
                context.checkpoint.upload(job.trial.path, {"steps_completed": 2}, shard=shard)
            with pytest.raises(RuntimeError, match="given up"):
                context.checkpoint.delete(kept)
        assert [path.name for path in job.checkpoints.iterdir()] == [kept]

    def test_what_another_run_has_just_begun_with_keeps_its_files(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It took over after this one's first look, and claimed the checkpoint before the fact that
        deletes it: nothing tells it to begin again."""

        def mark_late(*args: Any) -> checkpoint_facts.Deletion:
            job.trial.open_run({"resume": {"uuid": kept, "steps": 1}})
            return mark_deleted(*args)

        mark_deleted = checkpoint_facts.mark_deleted
        monkeypatch.setattr(checkpoint_facts, "mark_deleted", mark_late)
        with core.init() as context:
            kept = context.checkpoint.upload(job.trial.path, {"steps_completed": 1})
            with pytest.raises(RuntimeError, match="given up"):
                context.checkpoint.delete(kept)
        assert [path.name for path in job.checkpoints.iterdir()] == [kept]


class TestReportsOfAllRanks:
    """Metrics of every rank are recorded, and one rule decides between two of the same name."""

    def report_in_turn(self, job: Job, caplog: pytest.LogCaptureFixture) -> None:
        """Four ranks on two nodes report one after the other, as in Determined's example."""

        def body(dist: DistributedContext) -> None:
            with core.init(distributed=dist) as context:
                for step in range(1, 9):
                    if step % dist.size == dist.rank:
                        context.train.report_training_metrics(step, {"loss": 1 / step})
                context.train.report_metrics("ranks", 1, {"who": dist.rank, f"r{dist.rank}": 1})
                if dist.rank == 3:
                    context.train.report_validation_metrics(8, {"loss": 0.25, "only": 3})
                    context.train.report_progress(0.5)
                if dist.rank == 0:
                    context.train.report_validation_metrics(8, {"loss": 0.5})
                dist.allgather(None)

        assert on_ranks(4, body, nodes=2) == [None] * 4

    def test_every_reader_has_them(self, job: Job, caplog: pytest.LogCaptureFixture) -> None:
        """The lowest rank's value stands, whichever came first, wherever the metrics are read."""
        pytest.importorskip("numpy")
        from detslurm.store.series import logged_series

        self.report_in_turn(job, caplog)
        rows = trial_metrics(job.trial)
        assert [row.steps for row in rows if row.group == "training"] == list(range(1, 9))
        assert [row.rank for row in rows if row.group == "training"] == [1, 2, 3, 0] * 2
        (ranks,) = (row for row in rows if row.group == "ranks")
        assert ranks.metrics == {"who": 0, "r0": 1, "r1": 1, "r2": 1, "r3": 1}
        (validation,) = (row for row in rows if row.group == "validation")
        assert validation.metrics == {"loss": 0.5, "only": 3}
        view = fold_trial(job.trial, fold_facts(job.experiment).context(1))
        assert view.steps == 8 and view.progress == 0
        assert view.last_validation is not None
        assert view.last_validation.metrics == {"loss": 0.5, "only": 3}
        assert fold_experiment(job.experiment).best_value == 0.5
        assert BestValidation(job.experiment).value() == 0.5
        columns = metric_columns(job.trial, "training")
        assert list(columns.steps) == list(range(1, 9))
        who, loss = (
            next(one for one in logged_series(job.trial) if (one.group, one.metric) == key)
            for key in (("ranks", "who"), ("training", "loss"))
        )
        assert (who.values.tolist(), loss.steps.tolist()) == ([0.0], list(range(1, 9)))
        files = {path.name for path in job.trial.path.glob("run-1*.jsonl")}
        assert files == {"run-1.jsonl", *(f"run-1.rank{rank}.jsonl" for rank in (1, 2, 3))}

    def test_they_last(self, job: Job, caplog: pytest.LogCaptureFixture) -> None:
        """In the compacted file, too; and what a run adds that was given up counts for nothing."""
        pytest.importorskip("h5py")
        from detslurm.store.compaction import compact

        self.report_in_turn(job, caplog)
        before = trial_metrics(job.trial)
        assert job.trial.open_run({}).counted_bytes["1.3"] > 0
        for name in ("run-1.rank3.jsonl", "run-1.rank9.jsonl"):
            with RunLog.open(job.trial.path / name) as log:
                late = {"group": "training", "steps": 2, "metrics": {"late": 1}, "rank": 3}
                log.append({"t": "metrics", **late})
        assert trial_metrics(job.trial) == before
        job.trial.write_end(2, {"outcome": "completed", "time": 1.0})
        compact(job.experiment)
        for group in ("training", "validation", "ranks"):
            assert trial_metrics(job.trial, group) == [r for r in before if r.group == group]
        assert [row.rank for row in trial_metrics(job.trial, "training")] == [1, 2, 3, 0] * 2

    def test_a_worker_that_reports_no_metrics_has_no_file(
        self, job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where the store takes no file of a rank, its training goes on, with a warning."""

        def refuse(path: Path) -> Recorder:
            raise StoreFull("no space", 28, str(path))

        def body(dist: DistributedContext) -> None:
            with core.init(distributed=dist) as context:
                dist.allgather(None)
                context.train.report_progress(0.5)
                if dist.rank == 1:
                    monkeypatch.setattr(Recorder, "of", refuse)
                    monkeypatch.setattr(_recorder, "keep_trying", lambda act: act())
                    context.train.report_training_metrics(1, {"loss": 1})
                    context.train.report_training_metrics(2, {"loss": 1})

        assert on_ranks(3, body) == [None] * 3
        assert caplog.text.count("metrics of rank 1 can't be recorded") == 1
        assert not list(job.trial.path.glob("*rank*"))


def test_every_rank_of_a_script_has_its_info(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the chief records it; the others, too, must know from which checkpoint to go on."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    config = core_v2.Config(hparams={"lr": 1}, external_experiment_id="e", external_trial_id="t")

    def body(dist: DistributedContext) -> tuple[int, Any, str | None]:
        with core_v2.init_context(config=config, distributed=dist) as context:
            info = context.info
            assert info is not None
            with context.checkpoint.store_path({"steps_completed": 1}, shard=True):
                pass
            return info.trial._trial_run_id, info.trial.hparams, info.latest_checkpoint

    first, second = on_ranks(2, body), on_ranks(2, body)
    saved = fold_trial(Store.open().experiment(1).trial(1)).checkpoints[0].uuid
    assert first == [(1, {"lr": 1}, None)] * 2
    assert second == [(2, {"lr": 1}, saved)] * 2


def test_every_rank_of_a_script_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job: each keeps TensorBoard files and metrics, and what it deletes is known to be
    gone."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path))

    def body(dist: DistributedContext) -> None:
        with core.init(distributed=dist, tensorboard_mode=TensorboardMode.MANUAL) as context:
            context.train.report_training_metrics(1, {f"rank{dist.rank}": 1})
            (context.train.get_tensorboard_path() / "events").write_text("1")
            context.train.upload_tensorboard_files(
                mangler=lambda path, rank: path.with_suffix(f".{rank}")
            )
            with context.checkpoint.store_path({"steps_completed": 1}, shard=True) as (_, uuid):
                pass
            if dist.rank == 1:
                context.checkpoint.delete(uuid)

    assert on_ranks(2, body) == [None] * 2
    folder = tmp_path / "checkpoints/tensorboard/experiment/1/trial/1"
    assert {file.name for file in folder.iterdir()} == {"events.0", "events.1"}
    experiment = Store.open().experiment(1)
    (checkpoint,) = fold_trial(experiment.trial(1), fold_facts(experiment).context(1)).checkpoints
    assert checkpoint.state == "DELETED"
    assert [r.metrics for r in trial_metrics(experiment.trial(1))] == [{"rank0": 1, "rank1": 1}]


def test_nothing_heavy_is_imported() -> None:
    """The Core API brings its own weight only; libraries come when they are used."""
    heavy = ["torch", "numpy", "tensorboard", "fsspec", "s3fs", "psutil", "pynvml", "mpi4py"]
    code = f"import sys, detslurm.core; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
