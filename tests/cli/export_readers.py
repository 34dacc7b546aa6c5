"""What an export has written, as the tool reads it that it is for."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Curves = dict[int, dict[str, list[tuple[int, float]]]]


def curves(to: str, *folders: Path) -> list[Curves]:
    """trial -> tag -> (step, value) in each folder, as the tool itself reads it."""
    if to in SLOW_READERS:
        found: list[Curves] = SLOW_READERS[to](*folders)
        return found
    return [READERS[to](folder) for folder in folders]


def from_csv(folder: Path) -> Any:
    """With Python's csv."""
    with (folder / "experiment-1" / "metrics.csv").open(newline="") as file:
        return _by_tag(csv.DictReader(file))


def from_parquet(folder: Path) -> Any:
    """With pandas."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(folder / "experiment-1" / "metrics.parquet")
    assert str(frame["time"].dtype) == "datetime64[us, UTC]"
    assert frame["loss"].dtype == "float64"
    return _by_tag(frame.astype(object).where(frame.notna(), None).to_dict("records"))


def _by_tag(rows: Any) -> Any:
    found: dict[int, dict[str, list[tuple[int, float]]]] = {}
    for row in rows:
        for name in ("loss", "acc.top1"):
            if row.get(name) not in (None, ""):
                tag = f"{row['group']}/{name.replace('.', '/')}"
                of_trial = found.setdefault(int(row["trial"]), {})
                of_trial.setdefault(tag, []).append((int(row["steps"]), float(row[name])))
    return found


def from_tensorboard(folder: Path) -> Any:
    """With TensorBoard's own reader."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = {}
    for place in (folder / "experiment-1").glob("trial-*"):
        events = module.EventAccumulator(str(place))
        events.Reload()
        found[int(place.name.partition("-")[2])] = {
            tag: [(event.step, round(event.value, 6)) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }
    return found


def session_status(place: Path) -> str | None:
    """How a trial has ended for TensorBoard's page of hyperparameters; None while it goes on."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from tensorboard.plugins.hparams import api_pb2, metadata

    events = module.EventAccumulator(str(place))
    events.Reload()
    found = events.PluginTagToContent(metadata.PLUGIN_NAME).get(metadata.SESSION_END_INFO_TAG)
    if found is None:
        return None
    status = metadata.parse_session_end_info_plugin_data(found).status
    return str(api_pb2.Status.Name(status))


def from_mlflow(*folders: Path) -> Any:
    """With MLflow's client, in a process of its own."""
    script = """
import json, sys
from mlflow.tracking import MlflowClient
several = []
for address in sys.argv[1:]:
    client, found = MlflowClient(address), {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            found[run.data.tags["detslurm.trial"]] = {
                tag: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)]
                for tag in run.data.metrics
            }
    several.append(found)
print(json.dumps(several))
"""
    return _elsewhere(script, *(f"sqlite:///{folder}/mlflow.db" for folder in folders))


def from_trackio(folder: Path) -> Any:
    """With trackio's API."""
    script = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage as storage
found = {}
for project in storage.get_projects():
    for run in storage.get_run_records(project):
        curve = found.setdefault(run["name"].rpartition("/")[2], {})
        for row in storage.get_logs(project, run["name"], run_id=run["id"]):
            for tag, value in row.items():
                if "/" in tag:
                    curve.setdefault(tag, []).append((row["step"], value))
print(json.dumps([found]))
"""
    return _elsewhere(script, TRACKIO_DIR=str(folder / "trackio"))[0]


def from_wandb(*folders: Path) -> Any:
    """With W&B's own messages, out of the run files as its core writes them."""
    script = """
import json, sys
from pathlib import Path
from tests.cli.wandb_file import records
several = []
for folder in sys.argv[1:]:
    found = {}
    for path in Path(folder).glob("wandb/offline-run-*/run-*.wandb"):
        curve, trial = {}, None
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                trial = record.run.run_id.rpartition("-")[2]
            elif kind == "history":
                row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json)
                       for i in record.history.item}
                for tag, value in row.items():
                    if tag.startswith(("training/", "validation/")):
                        curve.setdefault(tag, []).append((row["_step"], value))
        found[trial] = curve
    several.append(found)
print(json.dumps(several))
"""
    return _elsewhere(script, *map(str, folders))


def _elsewhere(script: str, *args: str, **env: str) -> Any:
    several = json.loads(_printed(script, *args, **env))
    return [
        {
            int(trial): {tag: [tuple(point) for point in points] for tag, points in tags.items()}
            for trial, tags in found.items()
        }
        for found in several
    ]


def _printed(script: str, *args: str, **env: str) -> str:
    """The last line. The libraries warn, and keep threads: each is imported in a process of its
    own."""
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false",
             "PYTHONPATH": str(Path(__file__).parents[2]), **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


READERS = {
    "csv": from_csv,
    "parquet": from_parquet,
    "tensorboard": from_tensorboard,
    "trackio": from_trackio,
}
SLOW_READERS = {"wandb": from_wandb, "mlflow": from_mlflow}
"""Those whose process begins slowly: one reads all folders."""


def in_mlflow(*folders: Path) -> Any:
    """Each one's experiments by name, each with its runs, as MLflow's client gives them."""
    script = """
import json, sys
from mlflow.tracking import MlflowClient
print(json.dumps([sorted(
    [one.name, one.tags["mlflow.note.content"],
     [{**run.data.to_dictionary(), "name": run.info.run_name, "status": run.info.status}
      for run in client.search_runs([one.experiment_id])]]
    for one in client.search_experiments() if one.name != "Default"
) for client in map(MlflowClient, sys.argv[1:])]))
"""
    return json.loads(_printed(script, *(f"sqlite:///{folder}/mlflow.db" for folder in folders)))
