"""Trial classes that a configuration names: what fit() would be told is in the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.pytorch._units import NEVER, Batch, Epoch
from detslurm.pytorch.checkpointing._checkpoint_dir import read_state
from detslurm.pytorch.harness import main, plan, trial_class
from tests.pytorch.managed import Managed

MODEL = "tests.pytorch.trials:Regression"


def test_a_configuration_says_it_all(managed: Managed) -> None:
    """Periods, initial validation, policy, scheduling_unit, aggregation, hyperparameters."""
    managed.config |= {
        "min_validation_period": {"batches": 6},
        "min_checkpoint_period": {"records": 32},
        "perform_initial_validation": True,
        "checkpoint_policy": "none",
        "scheduling_unit": 9,
        "optimizations": {"aggregation_frequency": 2},
    }
    with managed.run({"global_batch_size": 4}):
        assert main([MODEL]) == 0
    assert managed.steps("validation") == [0, 6, 12, 18, 20]
    assert managed.checkpoints() == [8, 16, 20]
    assert managed.steps("training") == [6, 8, 9, 12, 16, 18, 20]
    latest = managed.view().latest_checkpoint
    assert latest is not None
    state = read_state(managed.experiment.store.path / "checkpoints" / latest.uuid)
    assert state["lr_schedulers_state_dict"][0]["last_epoch"] == 10  # steps of two batches


def test_the_next_run_goes_on(managed: Managed) -> None:
    """From the trial's latest checkpoint, without being told."""
    with managed.run() as flag:
        flag.request_preemption()
        assert main([MODEL]) == 0
    assert managed.checkpoints() == []  # preempted before the first batch: nothing to save
    managed.config["min_checkpoint_period"] = {"batches": 7}
    with managed.run():
        main([MODEL])
    assert managed.checkpoints() == [7, 14, 20]
    managed.config["searcher"]["max_length"] = {"batches": 22}
    with managed.run():
        main([MODEL])
    assert managed.checkpoints() == [7, 14, 20, 21, 22]


def test_plans() -> None:
    """Nothing configured is nothing done but at the end; epochs stay epochs."""
    default = plan({}, None)
    assert default.schedule.validation == default.schedule.checkpoint == NEVER
    assert (default.schedule.reporting, default.policy) == (Batch(100), "best")
    zero: dict[str, Any] = {"min_validation_period": {"batches": 0}}
    assert plan(zero, None).schedule.validation == NEVER
    epochs = {"min_validation_period": {"batches": None, "epochs": 2}}
    assert plan(epochs, None).schedule.validation == Epoch(2)
    own = {"optimizations": {"average_training_metrics": False}}
    assert default.average_training_metrics and not plan(own, None).average_training_metrics
    with pytest.raises(ValueError, match="min_checkpoint_period in records needs"):
        plan({"min_checkpoint_period": {"records": 10}}, None)


def test_classes_that_are_none(root: Path) -> None:
    """The error names what was asked for."""
    with pytest.raises(ValueError, match="json:Nothing: there is no such class"):
        trial_class("json:Nothing")
    with pytest.raises(ValueError, match="no such class in it; did you mean JSONDecoder"):
        trial_class("json:JSONDecodr")
    with pytest.raises(ValueError, match="json:JSONDecoder: it is no PyTorchTrial"):
        trial_class("json:JSONDecoder")


def test_without_a_job(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no configuration to take anything from."""
    assert main([MODEL]) == 1
    assert "needs a job" in capsys.readouterr().err
    assert main([]) == 2
