"""`Trainer.fit()`: its arguments, what happens at which batch, its errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import detslurm as det
from detslurm import errors, pytorch
from detslurm.core import EarlyExitReason
from detslurm.core._goals import Lengths
from detslurm.pytorch import Batch, Epoch
from detslurm.store import Store, fold_trial, read_records, trial_metrics
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, numbers


def fit(kind: type[Regression] = Regression, aggregation: int = 1, **arguments: Any) -> Any:
    """Train by hand."""
    with pytorch.init(aggregation_frequency=aggregation) as context:
        trial = kind(context)
        pytorch.Trainer(trial, context).fit(**arguments)
    return trial


def in_job(managed: Managed, kind: type[Regression] = Regression, **arguments: Any) -> Any:
    """Train in a job."""
    with managed.run(), pytorch.init() as context:
        trial = kind(context)
        pytorch.Trainer(trial, context).fit(**arguments)
    return trial


class Scripted(Regression):
    """Its validations give the losses 3, 2, 2, 1, 4 in turn."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.script = iter([3.0, 2.0, 2.0, 1.0, 4.0])

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        return {"loss": next(self.script), "accuracy": 1}

    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch


class TestBoundaries:
    """What happens at which batch."""

    def test_periods(self, managed: Managed) -> None:
        """Reports come whenever something is due; each covers the batches since the last."""
        trial = in_job(
            managed, reporting_period=Batch(10), validation_period=Batch(7), max_length=None,
            checkpoint_period=Batch([4, 9]), checkpoint_policy="none",
        )  # fmt: skip
        assert managed.steps("training") == [4, 7, 9, 10, 14, 20]
        assert managed.steps("validation") == [7, 14, 20]
        assert managed.checkpoints() == [4, 9, 20]
        row = managed.metrics("training")[1]
        assert row.metrics["loss"] == pytest.approx(sum(trial.losses[4:7]) / 3, rel=1e-12)
        assert (row.metrics["batches"], row.metrics["epochs"]) == (7, 7 / 12)
        assert managed.metrics("validation")[-1].metrics["batches"] == 20

    def test_epochs(self, managed: Managed) -> None:
        """12 batches are an epoch; the job's length may be in epochs."""
        managed.config["searcher"]["max_length"] = {"epochs": 3}
        in_job(managed, validation_period=Epoch(2), reporting_period=Epoch(1))
        assert managed.steps("training") == [12, 24, 36]
        assert managed.steps("validation") == [24, 36]
        assert managed.metrics("training")[0].metrics["epochs"] == 1

    def test_the_first_validation(self, managed: Managed) -> None:
        """step_zero_validation evaluates before the first batch, saves nothing, and is not
        repeated by a trial that goes on."""
        in_job(managed, step_zero_validation=True, validation_period=Batch(10))
        assert managed.steps("validation") == [0, 10, 20]
        assert 0 not in managed.checkpoints()

    def test_progress_reaches_the_end(self, managed: Managed) -> None:
        """The search hears how far the trial is, and that it is done, with its metric."""
        in_job(managed)
        view = managed.view()
        assert view.progress == 1
        assert view.length is not None and view.length["length"] == 20
        assert view.length["metric"] == managed.metrics("validation")[-1].metrics["loss"]

    def test_test_mode(self, root: Path) -> None:
        """One batch of training, one of validation, one checkpoint."""
        evaluated = []

        class Counting(Regression):
            def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
                evaluated.append(batch_idx)
                return super().evaluate_batch(batch, batch_idx)

        trial = fit(Counting, test_mode=True, max_length=Epoch(10))
        assert (len(trial.losses), evaluated) == (1, [0])
        (checkpoint,) = fold_trial(Store(root).experiment(1).trial(1)).checkpoints
        assert checkpoint.steps == 1

    def test_a_trial_asks_to_stop(self, managed: Managed) -> None:
        """It validates, saves and leaves; the search hears that it ended early."""

        class Sated(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                self.context.set_stop_requested(batch_idx == 5)
                return super().train_batch(batch, epoch_idx, batch_idx)

        trial = in_job(managed, Sated)
        assert len(trial.losses) == 6
        assert (managed.steps("validation"), managed.checkpoints()) == ([6], [6])
        assert managed.view().early_exit == EarlyExitReason.USER_REQUESTED_STOP.name.lower()

    def test_a_trial_that_asks_to_stop_at_its_end_is_complete(self, managed: Managed) -> None:
        """The search has its metric, and nothing ended early."""

        class Sated(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                self.context.set_stop_requested(batch_idx == 19)
                return super().train_batch(batch, epoch_idx, batch_idx)

        in_job(managed, Sated)
        view = managed.view()
        assert view.early_exit is None
        assert view.length is not None and view.length["length"] == 20

    def test_invalid_hyperparameters(self, managed: Managed) -> None:
        """What was trained is saved; the process ends with 0 and says why."""

        class Doubtful(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                if batch_idx == 3:
                    raise det.InvalidHP("too wide")
                return super().train_batch(batch, epoch_idx, batch_idx)

        with pytest.raises(SystemExit) as exited:
            in_job(managed, Doubtful)
        assert exited.value.code == 0
        assert managed.checkpoints() == [3]
        assert managed.view().early_exit == "invalid_hp"

    def test_invalid_hyperparameters_found_while_saving(self, managed: Managed) -> None:
        """There is no second attempt to save."""
        calls = []

        class Refusing(pytorch.PyTorchCallback):
            def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
                calls.append(1)
                raise det.InvalidHP

        class Trial(Regression):
            def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
                return {"refusing": Refusing()}

        with pytest.raises(SystemExit):
            in_job(managed, Trial)
        assert (len(calls), managed.checkpoints()) == (1, [])

    def test_a_finished_trial_that_starts_again(self, managed: Managed) -> None:
        """It trains nothing and validates nothing anew."""
        in_job(managed)
        latest = managed.view().latest_checkpoint
        assert latest is not None
        trial = in_job(managed, latest_checkpoint=latest.uuid)
        assert trial.losses == []
        assert (managed.steps("validation"), managed.checkpoints()) == ([20], [20])


class TestPolicy:
    """Which validations are followed by a checkpoint."""

    @pytest.mark.parametrize(
        ("policy", "smaller", "expected"),
        [
            ("best", True, [4, 8, 16, 20]),
            ("best", False, [4, 20]),
            ("all", True, [4, 8, 12, 16, 20]),
            ("none", True, [20]),
        ],
    )
    def test_in_a_job(
        self, managed: Managed, policy: str, smaller: bool, expected: list[int]
    ) -> None:
        """best: strictly better than all before in the experiment; the end is always saved."""
        managed.config["searcher"]["smaller_is_better"] = smaller
        managed.experiment.append({"type": "set", "smaller_is_better": smaller})
        in_job(managed, Scripted, validation_period=Batch(4), checkpoint_policy=policy)
        assert managed.checkpoints() == expected

    def test_by_hand(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        """best needs to know the metric: from exp_conf, or else it is all, and says so."""
        searcher = {"metric": "loss", "smaller_is_better": True}
        for number, (conf, expected) in enumerate(
            (({"searcher": searcher}, [4, 8, 16, 20]), (None, [4, 8, 12, 16, 20])), start=1
        ):
            with pytorch.init(exp_conf=conf) as context:
                pytorch.Trainer(Scripted(context), context).fit(
                    max_length=Batch(20), validation_period=Batch(4)
                )
            view = fold_trial(Store(root).experiment(number).trial(number))
            assert [c.steps for c in view.checkpoints] == expected
        assert "one is saved after every validation" in caplog.text

    @pytest.mark.parametrize(
        ("metrics", "said"),
        [({"other": 1}, "validation metrics are other"), ({"loss": "x"}, "must be a number")],
    )
    def test_the_metric_must_be_there(
        self, managed: Managed, metrics: dict[str, Any], said: str
    ) -> None:
        """A RuntimeError names the metric that the search is over."""

        class Wrong(Scripted):
            def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
                return metrics

        with pytest.raises(RuntimeError, match="searcher.metric.*" + said):
            in_job(managed, Wrong)


class TestLength:
    """Who says how long to train."""

    def test_the_search_wins(self, managed: Managed, caplog: pytest.LogCaptureFixture) -> None:
        """In a job its length counts, with a warning when fit() was given another."""
        trial = in_job(managed, max_length=Batch(5))
        assert len(trial.losses) == 20
        assert "fit(max_length=Batch(5)) is not used" in caplog.text

    def test_a_search_that_goes_on_with_a_trial(
        self, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each of its lengths ends with a validation, a checkpoint, and the metric it waits for."""
        lengths = Lengths([5, 12, 16])
        monkeypatch.setattr("detslurm.core._context.goals_of", lambda *_: lengths)
        trial = in_job(managed, Scripted, checkpoint_policy="none")
        assert len(trial.losses) == 16
        assert managed.steps("training") == managed.steps("validation") == [5, 12, 16]
        assert managed.checkpoints() == [5, 12, 16]
        records = read_records(managed.trial.records_path(1)).records
        completed = [(r["length"], r["metric"]) for r in records if r["t"] == "completed"]
        assert completed == [(5, 3.0), (12, 2.0), (16, 2.0)]
        order = [r["t"] for r in records if r["t"] in ("checkpoint", "completed")]
        assert order == ["checkpoint", "completed"] * 3

    def test_a_bare_number_takes_the_unit_of_fit(self, managed: Managed) -> None:
        """searcher.max_length: 2 with Epoch is two epochs."""
        managed.config["searcher"]["max_length"] = 2
        assert len(in_job(managed, max_length=Epoch(2)).losses) == 24
        with pytest.raises(ValueError, match=r"max_length=X.*without a unit"):
            in_job(managed)

    def test_without_a_length_in_the_search(self, managed: Managed) -> None:
        """fit() says it, or else the search's max_time, or nobody."""
        searcher = managed.config["searcher"]
        del searcher["max_length"]
        assert len(in_job(managed, max_length=Batch(3)).losses) == 3
        with pytest.raises(ValueError, match="max_length=X"):
            in_job(managed)
        searcher |= {"time_metric": "batches", "max_time": 7}
        assert len(in_job(managed).losses) == 7

    def test_records(self, managed: Managed) -> None:
        """Lengths in records need a batch size."""
        managed.config["searcher"]["max_length"] = {"records": 40}
        with pytest.raises(ValueError, match="global_batch_size"):
            in_job(managed)
        with managed.run(), pytorch.init(hparams={"global_batch_size": 4}) as context:
            trial = Regression(context)
            pytorch.Trainer(trial, context).fit()
        assert len(trial.losses) == 10


class TestErrors:
    """Each documented error has its type and says what to do."""

    def test_arguments(self, root: Path) -> None:
        """Outside of jobs."""
        for arguments, kind, said in (
            ({}, ValueError, "max_length must be defined in local training mode"),
            ({"max_length": 5}, TypeError, "max_length must be pytorch.Batch"),
            ({"max_length": Batch([1, 2])}, TypeError, "with an int"),
            ({"max_length": Batch(1), "validation_period": 3}, TypeError, "validation_period"),
            ({"max_length": Batch(1), "checkpoint_policy": "some"}, ValueError, "best, all, none"),
        ):
            with pytest.raises(kind, match=said):
                fit(**arguments)

    def test_test_mode_in_a_job(self, managed: Managed) -> None:
        """It is for trying things out by hand."""
        with pytest.raises(ValueError, match="only supported in local training mode"):
            in_job(managed, test_mode=True)

    def test_trials_that_lack_something(self, root: Path) -> None:
        """A model, an optimizer, one way to evaluate."""

        class NoModel(Regression):
            def __init__(self, context: Any) -> None:
                pass

        class NoOptimizer(Regression):
            def __init__(self, context: Any) -> None:
                context.wrap_model(torch.nn.Linear(1, 1))

        class Both(Regression):
            def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
                return {}

        class Neither(Regression):
            evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

        for kind, said in (
            (NoModel, "has no model"),
            (NoOptimizer, "has no optimizer"),
            (Both, "exactly one of .* not both"),
            (Neither, "exactly one of .* not none"),
        ):
            with pytest.raises(errors.InvalidExperimentException, match=said):
                fit(kind, max_length=Batch(1))

    def test_loaders_of_another_kind(self, root: Path) -> None:
        """They are refused with the way to allow them, and start over when they end."""

        class Foreign(Regression):
            def build_training_data_loader(self) -> Any:
                return torch.utils.data.DataLoader(numbers(12), batch_size=4)

        class Allowed(Foreign):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                context.experimental.disable_dataset_reproducibility_checks()

        class NoLoader(Allowed):
            def build_validation_data_loader(self) -> Any:
                return [1, 2]

        with pytest.raises(RuntimeError, match="disable_dataset_reproducibility_checks"):
            fit(Foreign, max_length=Batch(1))
        with pytest.raises(RuntimeError, match=r"build_validation_data_loader.* not list"):
            fit(NoLoader, max_length=Batch(1))
        trial = fit(Allowed, max_length=Epoch(2))
        assert len(trial.losses) == 6
        assert trial.seen[:3] == trial.seen[3:]

    def test_what_the_methods_return(self, root: Path) -> None:
        """Metrics are dicts, with the same names in every validation batch."""

        class NoMetrics(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                super().train_batch(batch, epoch_idx, batch_idx)

        class NoDict(Regression):
            def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
                return torch.tensor(1.0)

        class Changing(Regression):
            def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
                return {f"loss{batch_idx}": 1}

        class Empty(Regression):
            def build_validation_data_loader(self) -> Any:
                return pytorch.DataLoader(torch.utils.data.TensorDataset(torch.empty(0, 8)))

        for kind, error, said in (
            (NoMetrics, TypeError, r"train_batch\(\) must return a dict"),
            (NoDict, TypeError, r"evaluate_batch\(\) must return a dict"),
            (Changing, ValueError, "same metrics for every batch"),
            (Empty, RuntimeError, "validation data is empty"),
        ):
            with pytest.raises(error, match=said):
                fit(kind, max_length=Batch(1))

    def test_no_training_data(self, root: Path) -> None:
        """Said before the first batch."""

        class Empty(Regression):
            records = 0

        Empty.shuffle = False
        with pytest.raises(ValueError, match="training data is empty"):
            fit(Empty, max_length=Batch(1))

    def test_an_unknown_checkpoint(self, root: Path) -> None:
        """The id is in the message."""
        uuid = "00000000-0000-4000-8000-000000000000"
        with pytest.raises(errors.CheckpointNotFound, match=uuid):
            fit(max_length=Batch(1), latest_checkpoint=uuid)


class TestMetrics:
    """What becomes of what train_batch returns."""

    def test_a_bare_tensor_is_the_loss(self, managed: Managed) -> None:
        """As older code returns it."""

        class Bare(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                return super().train_batch(batch, epoch_idx, batch_idx)["loss"]

        trial = in_job(managed, Bare)
        (row,) = managed.metrics("training")
        assert row.metrics["loss"] == pytest.approx(sum(trial.losses) / 20, rel=1e-12)

    def test_averages(self, managed: Managed) -> None:
        """None doesn't count, text averages to None, arrays by element, and a tensor that changes
        later was copied."""

        class Odd(Regression):
            total = torch.zeros(())

            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                super().train_batch(batch, epoch_idx, batch_idx)
                self.total += 1
                return {
                    "rare": batch_idx if batch_idx % 2 else None,
                    "text": "x",
                    "vector": torch.tensor([1.0, batch_idx]),
                    "total": self.total,
                    **({"late": 1} if batch_idx > 10 else {}),
                }

        in_job(managed, Odd)
        (row,) = managed.metrics("training")
        assert row.metrics == {
            "batches": 20, "epochs": 20 / 12, "rare": 10, "text": None,
            "vector": [1.0, 9.5], "total": 10.5, "late": 1,
        }  # fmt: skip

    def test_older_evaluate_batch(self, managed: Managed) -> None:
        """It may take the batch alone."""

        class Older(Regression):
            def evaluate_batch(self, batch: Any) -> Any:  # type: ignore[override]
                return super().evaluate_batch(batch, 0)

        in_job(managed, Older)
        assert managed.steps("validation") == [20]

    def test_batches_of_a_type_of_their_own(
        self, root: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Records are counted for the log; what can't be counted does no harm."""

        class Wrapped(Regression):
            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                return super().train_batch(batch, epoch_idx, batch_idx)

            def get_batch_length(self, batch: Any) -> int:
                raise TypeError("Data of incorrect type")

        with caplog.at_level(logging.WARNING, "detslurm.pytorch"):
            fit(Wrapped, max_length=Batch(3))
        assert caplog.text.count("records are not counted") == 1


def test_by_hand_everything_is_tracked(root: Path) -> None:
    """Metrics and checkpoints of a script are in the store, and fit() goes on from one of them."""
    fit(max_length=Batch(7), reporting_period=Batch(5))
    first = Store(root).experiment(1).trial(1)
    assert [row.steps for row in trial_metrics(first, "training")] == [5, 7]
    (checkpoint,) = fold_trial(first).checkpoints
    trial = fit(max_length=Batch(10), latest_checkpoint=checkpoint.uuid)
    assert len(trial.losses) == 3
    folder = root / "checkpoints" / checkpoint.uuid
    assert len(fit(max_length=Batch(9), latest_checkpoint=str(folder)).losses) == 2


def test_unused_settings_are_mentioned(managed: Managed, caplog: pytest.LogCaptureFixture) -> None:
    """Periods of the configuration that a script doesn't pass on, and a forgotten checkpoint."""
    managed.config["min_validation_period"] = {"batches": 5}
    in_job(managed)
    assert "min_validation_period of the configuration has no effect" in caplog.text
    in_job(managed)
    assert "called without latest_checkpoint" in caplog.text
