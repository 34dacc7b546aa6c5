"""`Trainer.fit()`: its arguments, what happens at which batch, its errors."""

from __future__ import annotations

import logging
import math
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import detslurm as det
from detslurm import pytorch
from detslurm.core import EarlyExitReason
from detslurm.core._lengths import FixedLengths
from detslurm.pytorch import Batch, Epoch
from detslurm.pytorch.checkpointing._checkpoint_dir import read_counters
from detslurm.store import Store, fold_trial, read_records, trial_metrics
from tests.pytorch.fitting import Scripted, fit, in_job, returning
from tests.pytorch.managed import Managed
from tests.pytorch.trials import Regression, numbers


def progress(managed: Managed, run: int) -> list[float]:
    """What a run told of its progress."""
    records = read_records(managed.trial.records_path(run)).records
    return [record["value"] for record in records if record["t"] == "progress"]


class TestBoundaries:
    """What happens at which batch."""

    def test_periods(self, managed: Managed) -> None:
        """Reports come whenever something is due; each covers the batches since the last, and so
        do reducers."""

        class Counting(Regression):
            def __init__(self, context: Any) -> None:
                super().__init__(context)
                self.count = context.wrap_reducer(len, "count")

            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                self.count.update(1)
                return super().train_batch(batch, epoch_idx, batch_idx)

            def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
                self.count.update(1)
                return super().evaluate_batch(batch, batch_idx)

        trial = in_job(
            managed, Counting, reporting_period=Batch(10), validation_period=Batch(7),
            checkpoint_period=Batch([4, 9]), checkpoint_policy="none",
        )  # fmt: skip
        assert managed.steps("training") == [4, 7, 9, 10, 14, 20]
        assert managed.steps("validation") == [7, 14, 20]
        assert managed.checkpoints() == [4, 9, 20]
        row = managed.metrics("training")[1]
        assert row.metrics["loss"] == pytest.approx(sum(trial.losses[4:7]) / 3, rel=1e-12)
        assert (row.metrics["batches"], row.metrics["epochs"]) == (7, 0)
        assert managed.metrics("validation")[-1].metrics["batches"] == 20
        counts = {
            g: [r.metrics["count"] for r in managed.metrics(g)] for g in ("training", "validation")
        }
        assert counts == {"training": [4, 3, 2, 1, 4, 6], "validation": [4, 4, 4]}

    def test_epochs(self, managed: Managed) -> None:
        """12 batches are an epoch; the job's length may be in epochs."""
        managed.config["searcher"]["max_length"] = {"epochs": 3}
        in_job(
            managed, validation_period=Epoch(2), reporting_period=Epoch(1),
            checkpoint_period=Epoch(2), checkpoint_policy="all",
        )  # fmt: skip
        assert managed.steps("training") == [12, 24, 36]
        assert managed.steps("validation") == managed.checkpoints() == [24, 36]
        assert managed.metrics("training")[0].metrics["epochs"] == 1
        latest = managed.view().latest_checkpoint
        assert latest is not None
        counters = read_counters(managed.experiment.store.path / "checkpoints" / latest.uuid)
        assert (counters["batches_trained"], counters["epochs_trained"]) == (36, 3)

    def test_the_first_validation(self, managed: Managed) -> None:
        """step_zero_validation evaluates before the first batch, saves nothing, and is not
        repeated by a trial that goes on."""
        in_job(managed, step_zero_validation=True, validation_period=Batch(10))
        assert managed.steps("validation") == [0, 10, 20]
        latest = managed.view().latest_checkpoint
        assert latest is not None and 0 not in managed.checkpoints()
        managed.config["searcher"]["max_length"] = {"batches": 22}
        in_job(managed, step_zero_validation=True, latest_checkpoint=latest.uuid)
        assert [row.steps for row in managed.metrics("validation") if row.run == 2] == [22]

    def test_progress_reaches_the_end(self, managed: Managed) -> None:
        """The search hears how far the trial is, and that it is done, with its metric; without a
        search's length it is recorded all the same."""
        in_job(managed, reporting_period=Batch(5))
        view = managed.view()
        assert progress(managed, 1) == [0.25, 0.5, 0.75, 1]
        assert view.length is not None and view.length["length"] == 20
        assert view.length["metric"] == managed.metrics("validation")[-1].metrics["loss"]
        del managed.config["searcher"]["max_length"]
        in_job(managed, max_length=Batch(8), reporting_period=Batch(6))
        assert progress(managed, 2) == [0.75, 1]

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

    def test_an_experiment_in_test_mode(
        self, managed: Managed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As above, whatever length the configuration and the script ask for."""
        monkeypatch.setenv("DETSLURM_TEST_MODE", "1")
        trial = in_job(managed, max_length=Epoch(10))
        assert len(trial.losses) == 1
        assert (managed.steps("validation"), managed.checkpoints()) == ([1], [1])

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

    @pytest.mark.parametrize("preempted", [False, True])
    def test_a_stop_that_the_trial_has_asked_for_outlasts_its_run(
        self, managed: Managed, preempted: bool
    ) -> None:
        """Also where a preemption came in the validation that decided, and outranked it there."""

        class EarlyStopping(pytorch.PyTorchCallback):
            def __init__(self, context: Any) -> None:
                self.context = context

            def on_validation_end(self, metrics: dict[str, Any]) -> None:
                if preempted:
                    flag.request_preemption()
                self.context.set_stop_requested(True)

        class Sated(Regression):
            def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
                return {"stopping": EarlyStopping(self.context)}

        with managed.run() as flag, pytorch.init() as context:
            pytorch.Trainer(Sated(context), context).fit(validation_period=Batch(6))
        asked = EarlyExitReason.USER_REQUESTED_STOP.name.lower()
        assert managed.view().early_exit == (None if preempted else asked)
        latest = managed.view().latest_checkpoint
        assert latest is not None
        preempted = False
        trial = in_job(managed, Sated, latest_checkpoint=latest.uuid)
        assert trial.losses == [] and managed.view().early_exit == asked
        assert (managed.steps("validation"), managed.checkpoints()) == ([6], [6])

    def test_another_training_in_the_job_does_not_inherit_a_stop(self, managed: Managed) -> None:
        """It has an init() of its own, and goes on from the checkpoint of the one before."""
        seen: list[str] = []

        class Saved(pytorch.PyTorchCallback):
            def on_checkpoint_upload_end(self, uuid: str) -> None:
                seen.append(uuid)

        class Sated(Regression):
            def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
                return {"saved": Saved()}

            def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
                self.context.set_stop_requested(batch_idx == 5)
                return super().train_batch(batch, epoch_idx, batch_idx)

        with managed.run():
            with pytorch.init() as context:
                pytorch.Trainer(Sated(context), context).fit()
            with pytorch.init() as context:
                trial = Regression(context)
                pytorch.Trainer(trial, context).fit(latest_checkpoint=seen[-1])
        assert len(trial.losses) == 14


class WithNaN(Scripted):
    """The loss is NaN at times."""

    losses_of_validations = (math.nan, math.nan, 2.0, 3.0, math.nan)


class WithInfinities(Scripted):
    """The loss has diverged in another way."""

    losses_of_validations = (-math.inf, math.nan, 2.0, 3.0, math.inf)


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
        in_job(managed, Scripted, validation_period=Batch(4), checkpoint_policy=policy)
        assert managed.checkpoints() == expected

    @pytest.mark.parametrize("kind", [WithNaN, WithInfinities])
    def test_nan_is_worse_than_every_number(self, managed: Managed, kind: type[Scripted]) -> None:
        """Even so, the first validation is the best so far. Infinities are no better."""
        in_job(managed, kind, validation_period=Batch(4))
        assert managed.checkpoints() == [4, 12, 20]

    @pytest.mark.parametrize(
        ("kind", "smaller", "expected"),
        [
            (Scripted, True, [4, 8, 16, 20]),
            (Scripted, False, [4, 20]),
            (Scripted, None, [4, 8, 12, 16, 20]),
            (WithNaN, True, [4, 12, 20]),
            (WithNaN, False, [4, 12, 16, 20]),
            (WithInfinities, True, [4, 12, 20]),
            (WithInfinities, False, [4, 12, 16, 20]),
        ],
    )
    def test_by_hand(
        self,
        root: Path,
        caplog: pytest.LogCaptureFixture,
        kind: type[Scripted],
        smaller: bool | None,
        expected: list[int],
    ) -> None:
        """best needs to know the metric: from exp_conf, or else it is all, and says so."""
        known = {"searcher": {"metric": "loss", "smaller_is_better": smaller}}
        caplog.set_level(logging.INFO, "detslurm.pytorch")
        with pytorch.init(exp_conf=None if smaller is None else known) as context:
            pytorch.Trainer(kind(context), context).fit(
                max_length=Batch(20), validation_period=Batch(4)
            )
        view = fold_trial(Store(root).experiment(1).trial(1))
        assert [c.steps for c in view.checkpoints] == expected
        assert ("save at the end and after every validation" in caplog.text) is (smaller is None)

    @pytest.mark.parametrize(
        ("metrics", "said"),
        [
            ({"other": 1}, "validation metrics are other"),
            ({"loss": "x"}, "must be a number, not 'x'"),
            ({"loss": None}, "must be a number, not None"),
            ({"loss": np.ones(2)}, "must be a number, not array"),
        ],
    )
    @pytest.mark.parametrize("policy", ["best", "none"])
    def test_the_metric_must_be_there(
        self, managed: Managed, policy: str, metrics: dict[str, Any], said: str
    ) -> None:
        """A RuntimeError names the metric that the search is over, whatever the policy."""
        with pytest.raises(RuntimeError, match="searcher.metric.*" + said):
            in_job(managed, returning(metrics), checkpoint_policy=policy)

    def test_without_a_search_the_metric_may_be_missing(self, managed: Managed) -> None:
        """Unless the policy is over it."""
        del managed.config["searcher"]["max_length"]
        for policy in ("all", "none"):
            in_job(managed, returning({"x": 1}), checkpoint_policy=policy, max_length=Batch(1))
        with pytest.raises(RuntimeError, match=r"searcher\.metric"):
            in_job(managed, returning({"x": 1}), max_length=Batch(1))

    @pytest.mark.parametrize(
        "value", [2, np.float32(2), np.array(2.0), np.array([2.0]), torch.tensor(2), torch.ones(1)]
    )
    def test_kinds_of_numbers(self, managed: Managed, value: Any) -> None:
        """Whatever has one number in it is one."""
        managed.config["searcher"]["max_length"] = {"batches": 1}
        in_job(managed, returning({"loss": value}))
        (row,) = managed.metrics("validation")
        assert row.metrics["loss"] == np.asarray(value).item() and managed.checkpoints() == [1]


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
        lengths = FixedLengths([5, 12, 16])
        monkeypatch.setattr("detslurm.core._context.lengths_of", lambda *_: lengths)
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

    def test_without_a_length_in_the_search(
        self, managed: Managed, caplog: pytest.LogCaptureFixture
    ) -> None:
        """fit() says it, or else the search's max_time, or nobody. Both should say the same."""
        searcher = managed.config["searcher"]
        del searcher["max_length"]
        assert len(in_job(managed, max_length=Batch(3)).losses) == 3
        with pytest.raises(ValueError, match="max_length=X"):
            in_job(managed)
        searcher |= {"time_metric": "batches", "max_time": 7}
        assert len(in_job(managed).losses) == 7
        assert "max_time" not in caplog.text
        assert len(in_job(managed, max_length=Batch(3)).losses) == 3
        assert "fit(max_length=Batch(3)) is not the search's max_time, Batch(7)" in caplog.text

    def test_a_method_of_ones_own(self, managed: Managed) -> None:
        """Its lengths count what searcher.unit says, or else fit()."""
        managed.config["searcher"] = {"name": "custom", "metric": "loss"}
        with pytest.raises(ValueError, match=r"max_length=X.*searcher\.unit"):
            in_job(managed)
        assert in_job(managed, max_length=Batch(3)).losses == []  # nothing is wanted yet
        managed.config["searcher"]["unit"] = "epochs"
        assert in_job(managed).losses == []

    def test_records(self, managed: Managed) -> None:
        """Lengths in records need a batch size."""
        managed.config["searcher"]["max_length"] = {"records": 40}
        with pytest.raises(ValueError, match="global_batch_size"):
            in_job(managed)
        with managed.run(), pytorch.init(hparams={"global_batch_size": 4}) as context:
            trial = Regression(context)
            pytorch.Trainer(trial, context).fit()
        assert len(trial.losses) == 10


def test_a_failed_training_leaves_no_workers(root: Path) -> None:
    """Though the exception, which somebody may hold, has the loop in its frames."""

    class Failing(Regression):
        def build_training_data_loader(self) -> Any:
            return pytorch.DataLoader(numbers(), batch_size=4, num_workers=1)

        def train_batch(self, *args: Any) -> Any:
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad") as caught:
        fit(Failing, max_length=Batch(3))
    assert caught.tb is not None
    assert multiprocessing.active_children() == []


def test_unmanaged_runs_record_everything(root: Path) -> None:
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


def test_a_compiled_model_is_compiled_once() -> None:
    """The loop breaks no graph and changes nothing that a compiled model guards on: one graph for
    training and one for validation, whatever lies between batches."""
    torch.compiler.reset()
    graphs: list[Any] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    class Compiled(Regression):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.model = torch.compile(self.model, backend=backend, fullgraph=True)

    fit(
        Compiled, aggregation=2, max_length=Batch(14), reporting_period=Batch(3),
        validation_period=Batch(6), checkpoint_policy="none",
    )  # fmt: skip
    assert len(graphs) == 2
