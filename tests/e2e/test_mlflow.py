"""A script that knows MLflow alone writes to the run of its trial, and reads it back."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.e2e.desk import Desk

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not find_spec("mlflow"), reason="mlflow is not installed"),
]

SCRIPT = """\
import mlflow

mlflow.set_tracking_uri("detslurm://")
mlflow.set_experiment("whatever")
with mlflow.start_run(run_name="mine"):
    mlflow.log_params({"depth": 3})
    mlflow.set_tag("data", "digits")
    for epoch in range(1, 4):
        mlflow.log_metrics({"train_loss": 1 / epoch, "val_loss": 2 / epoch}, step=epoch)
"""
READER = """\
import mlflow

mlflow.set_tracking_uri("detslurm://")
(run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
print(run.info.status, run.data.metrics, run.data.params["depth"], run.data.tags["data"])
try:
    mlflow.delete_run(run.info.run_id)
except mlflow.exceptions.MlflowException as error:
    print(error)
"""


def test_a_script_for_mlflow_writes_to_its_trial(desk: Desk) -> None:
    """Metrics become the trial's, the searcher's among them; parameters and tags are kept; reading
    needs no run, and nothing outside of a run can write."""
    config = desk.project(SCRIPT, "record: [mlflow]")
    number = desk.submit(config, "searcher.metric=val_loss")
    desk.wait_for_state(number, "COMPLETED")
    assert [row.metrics["val_loss"] for row in desk.metrics(number, "validation")] == [2, 1, 2 / 3]
    read = desk.user.run("python3", str(desk.write("read.py", READER)))
    first, refusal = read.stdout.splitlines()
    assert first.startswith("FINISHED {") and "'val_loss': 0.66" in first
    assert first.endswith("} 3 digits")
    assert "takes no writes here" in refusal
