"""Exports are read back by the tools that they are for."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk.export import FORMATS
from detslurm.store import ExperimentDir, MetricRow, RunLog, TrialDir, trial_metrics
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import Scene

ISOLATED = ("wandb", "mlflow", "trackio")


def report(trial: TrialDir, run: int, records: list[dict[str, Any]]) -> None:
    """A run reports more."""
    with RunLog.open(trial.records_path(run)) as log:
        for record in records:
            log.append({"t": "metrics", "time": 1000.0 + record["steps"], **record})


def training(steps: int, **metrics: Any) -> dict[str, Any]:
    """A report of the group training."""
    return {"group": "training", "steps": steps, "metrics": metrics}


def validation(steps: int, **metrics: Any) -> dict[str, Any]:
    """A report of the group validation."""
    return {"group": "validation", "steps": steps, "metrics": metrics}


@pytest.fixture
def begun(scene: Scene) -> Iterator[tuple[Scene, ExperimentDir, TrialDir]]:
    """Two trials: one is over, one has reported three times and goes on."""
    experiment = scene.experiment(2, about={"labels": ("night run",)})
    scene.run(experiment, 0, losses=[0.5, 0.25], end="completed")
    running = scene.run(experiment, 1)
    report(
        running,
        1,
        [
            training(1, loss=0.9, acc={"top1": 0.1}, phase="warm"),
            training(2, loss=0.8, acc={"top1": 0.2}, phase="warm"),
            validation(2, loss=0.7),
        ],
    )
    yield scene, experiment, running


def exported(detslurm: Detslurm, to: str, folder: Path) -> dict[int, tuple[str, int]]:
    """What an export did with each trial."""
    result = detslurm("experiment", "export", 1, "--to", to, "-o", folder, "--json")
    assert result.status == 0, result.err
    return {one["trial"]: (one["change"], one["rows"]) for one in result.data}


def curves(to: str, folder: Path) -> dict[int, dict[str, list[tuple[int, float]]]]:
    """trial -> tag -> (step, value), as the tool itself reads it."""
    found: dict[int, dict[str, list[tuple[int, float]]]] = READERS[to](folder)
    return found


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


def from_mlflow(folder: Path) -> Any:
    """With MLflow's client, in a process of its own."""
    script = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
found = {}
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        found[run.data.tags["detslurm.trial"]] = {
            tag: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)]
            for tag in run.data.metrics
        }
print(json.dumps(found))
"""
    return _elsewhere(script, f"sqlite:///{folder}/mlflow.db")


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
print(json.dumps(found))
"""
    return _elsewhere(script, TRACKIO_DIR=str(folder / "trackio"))


def from_wandb(folder: Path) -> Any:
    """With W&B's own messages, out of the run files as its core writes them."""
    script = """
import json, sys
from pathlib import Path
from tests.cli.wandb_file import records
found = {}
for path in Path(sys.argv[1]).glob("wandb/offline-run-*/run-*.wandb"):
    curve, trial = {}, None
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            trial = record.run.run_id.rpartition("-")[2]
        elif kind == "history":
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json)
                   for i in record.history.item}
            for tag, value in row.items():
                if not tag.startswith("_"):
                    curve.setdefault(tag, []).append((row["_step"], value))
    found[trial] = curve
print(json.dumps(found))
"""
    return _elsewhere(script, str(folder))


def _elsewhere(script: str, *args: str, **env: str) -> Any:
    """The libraries warn, and keep threads: each is imported in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false",
             "PYTHONPATH": str(Path(__file__).parents[2]), **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    return {
        int(trial): {tag: [tuple(point) for point in points] for tag, points in tags.items()}
        for trial, tags in loaded.items()
    }


READERS = {
    "csv": from_csv,
    "parquet": from_parquet,
    "tensorboard": from_tensorboard,
    "wandb": from_wandb,
    "mlflow": from_mlflow,
    "trackio": from_trackio,
}


@pytest.fixture(params=FORMATS)
def to(request: pytest.FixtureRequest) -> str:
    """Each format whose library is installed."""
    module = {"parquet": "pyarrow"}.get(request.param, request.param)
    if module != "csv":
        pytest.importorskip(module) if module not in ISOLATED else _installed(module)
    return str(request.param)


def _installed(module: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def test_the_curves_arrive_and_an_export_adds_only_what_is_new(
    begun: tuple[Scene, ExperimentDir, TrialDir], to: str, tmp_path: Path, detslurm: Detslurm
) -> None:
    """Twice the same; more rows; then a restart that takes some back."""
    scene, experiment, running = begun
    folder = tmp_path / "out"
    one = {"validation/loss": [(1, 0.5), (2, 0.25)]}
    two = {
        "training/loss": [(1, 0.9), (2, 0.8)],
        "training/acc/top1": [(1, 0.1), (2, 0.2)],
        "validation/loss": [(2, 0.7)],
    }
    assert exported(detslurm, to, folder) == {1: ("new", 2), 2: ("new", 3)}
    before = _files(folder)
    assert exported(detslurm, to, folder) == {1: ("unchanged", 0), 2: ("unchanged", 0)}
    assert _files(folder) == before

    report(running, 1, [training(3, loss=0.6, acc={"top1": 0.3})])
    assert exported(detslurm, to, folder) == {1: ("unchanged", 0), 2: ("added", 1)}
    two["training/loss"].append((3, 0.6))
    two["training/acc/top1"].append((3, 0.3))
    assert curves(to, folder) == {1: one, 2: two}

    running.write_end(1, {"outcome": "preempted", "time": 2000.0})
    resume = {"uuid": "c", "steps": 1}
    scene.run(experiment, 1, resume=resume, losses=[0.4], end="completed")
    assert exported(detslurm, to, folder) == {1: ("unchanged", 0), 2: ("rewritten", 2)}
    two = {
        "training/loss": [(1, 0.9)],
        "training/acc/top1": [(1, 0.1)],
        "validation/loss": [(2, 0.4)],
    }
    assert curves(to, folder) == {1: one, 2: two}
    assert b"hush-hush" not in b"".join(path.read_bytes() for path in _paths(folder))


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _files(folder: Path) -> dict[str, bytes]:
    """All files but the side files of open databases."""
    return {
        str(path): path.read_bytes()
        for path in _paths(folder)
        if not path.name.endswith(("-wal", "-shm", ".lock", ".jsonl"))
    }


def test_tables_have_states_hyperparameters_and_the_configuration(
    begun: tuple[Scene, ExperimentDir, TrialDir], tmp_path: Path, detslurm: Detslurm
) -> None:
    """What pandas is wanted for: which hyperparameters gave which result."""
    exported(detslurm, "csv", tmp_path)
    with (tmp_path / "experiment-1" / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["trial"], row["state"]) for row in rows] == [("1", "COMPLETED"), ("2", "RUNNING")]
    assert [row["hparams.lr"] for row in rows] == ["0.1", "0.1"]
    assert (rows[0]["best_loss"], rows[0]["best_steps"]) == ("0.25", "2")
    config = json.loads((tmp_path / "experiment-1" / "config.json").read_text())
    assert config["searcher"]["metric"] == "loss"
    assert config["data"]["secrets"]["token"] != "hush-hush"
    with (tmp_path / "experiment-1" / "metrics.csv").open(newline="") as file:
        first = next(row for row in csv.DictReader(file) if row["trial"] == "2")
    assert (first["time"], first["phase"]) == ("1970-01-01T00:16:41Z", "warm")


def test_a_torn_journal_and_a_broken_off_export_are_made_good(
    begun: tuple[Scene, ExperimentDir, TrialDir], tmp_path: Path, detslurm: Detslurm
) -> None:
    """What was begun is written again whole: nothing is there twice."""
    exported(detslurm, "tensorboard", tmp_path)
    journal = tmp_path / ".detslurm-tensorboard.jsonl"
    lines = journal.read_bytes().splitlines()
    pending = next(line for line in lines if b'"pending":true' in line and b'"trial":2' in line)
    journal.write_bytes(b"\n".join(lines) + b"\n" + pending + b'\n{"run":"torn')
    assert exported(detslurm, "tensorboard", tmp_path) == {1: ("unchanged", 0), 2: ("rewritten", 3)}
    assert from_tensorboard(tmp_path)[2]["training/loss"] == [(1, 0.9), (2, 0.8)]
    assert set(exported(detslurm, "tensorboard", tmp_path).values()) == {("unchanged", 0)}


def test_a_finished_trial_is_not_read_again(
    begun: tuple[Scene, ExperimentDir, TrialDir],
    tmp_path: Path,
    detslurm: Detslurm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for another name of its experiment, which every run shows."""
    scene, _, _ = begun
    exported(detslurm, "csv", tmp_path)
    read: list[int] = []

    def reading(trial: TrialDir) -> list[MetricRow]:
        read.append(trial.id)
        return trial_metrics(trial)

    monkeypatch.setattr("detslurm.sdk.export.content.trial_metrics", reading)
    assert exported(detslurm, "csv", tmp_path)[1] == ("unchanged", 0)
    assert read == [2]
    scene.client.stored(1).set_name("another")
    assert exported(detslurm, "csv", tmp_path)[1] == ("added", 0)


def test_experiments_of_two_stores_do_not_mix(
    begun: tuple[Scene, ExperimentDir, TrialDir],
    tmp_path: Path,
    detslurm: Detslurm,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both count from 1."""
    exported(detslurm, "csv", tmp_path / "out")
    other = Scene(tmp_path / "other")
    other.run(other.experiment(1), losses=[0.1], end="completed")
    monkeypatch.setenv("DETSLURM_ROOT", str(other.root))
    result = detslurm("experiment", "export", 1, "--to", "csv", "-o", tmp_path / "out")
    assert result.status == 1
    assert "has experiment 1 of another store: choose another directory" in result.err


@pytest.mark.parametrize(
    ("to", "extra"), [(name, name) for name in ("parquet", "tensorboard", *ISOLATED)]
)
def test_a_missing_library_is_named_with_what_to_install(
    scene: Scene,
    tmp_path: Path,
    detslurm: Detslurm,
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    extra: str,
) -> None:
    """Nothing is written."""
    scene.experiment(1)
    monkeypatch.setattr("detslurm.sdk.export.libraries.find_spec", lambda name: None)
    result = detslurm("experiment", "export", 1, "--to", to, "-o", tmp_path / "out")
    assert result.status == 1
    assert f"pip install 'detslurm[{extra}]'" in result.err
    assert not (tmp_path / "out").exists()


def test_mlflow_refuses_a_directory_that_its_address_can_not_name(
    begun: tuple[Scene, ExperimentDir, TrialDir], tmp_path: Path, detslurm: Detslurm
) -> None:
    """It would write beside it."""
    _installed("mlflow")
    folder = tmp_path / "od?d"
    result = detslurm("experiment", "export", 1, "--to", "mlflow", "-o", folder)
    assert (result.status, "a '?' is in its name" in result.err) == (1, True)
    assert not (tmp_path / "od").exists()


def test_an_export_while_another_is_at_work_is_refused(
    begun: tuple[Scene, ExperimentDir, TrialDir], tmp_path: Path, detslurm: Detslurm
) -> None:
    """One writer at a time."""
    with (tmp_path / ".detslurm-csv.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = detslurm("experiment", "export", 1, "--to", "csv", "-o", tmp_path)
    assert (result.status, "another export is at work" in result.err) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("to", ISOLATED)
def test_nothing_goes_over_the_network(
    begun: tuple[Scene, ExperimentDir, TrialDir], to: str, tmp_path: Path
) -> None:
    """No address but this machine's own is connected to, and no name is looked up."""
    _installed(to)
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace, folder = tmp_path / "trace", tmp_path / "out"
    command = ["experiment", "export", "1", "--to", to, "-o", str(folder)]
    subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=connect,sendto", "-o", trace,
         sys.executable, "-m", "detslurm", *command],
        env={**os.environ, "WANDB_API_KEY": "k" * 40, "WANDB_MODE": "online"},
        check=True, capture_output=True,
    )  # fmt: skip
    called = [line for line in trace.read_text().splitlines() if "AF_INET" in line]
    assert [line for line in called if "127.0.0.1" not in line and '"::1"' not in line] == []


def test_wandb_takes_the_runs_for_its_own(
    begun: tuple[Scene, ExperimentDir, TrialDir], tmp_path: Path, detslurm: Detslurm
) -> None:
    """`wandb sync`, as far as it goes offline: it finds each run and would upload it."""
    _installed("wandb")
    exported(detslurm, "wandb", tmp_path)
    runs = sorted(str(path) for path in tmp_path.glob("wandb/offline-run-*"))
    done = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--dry-run", *runs],
        env={**os.environ, "WANDB_ERROR_REPORTING": "false"},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert all(Path(run).name in said for run in runs), said
