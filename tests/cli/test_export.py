"""Exports are read back by the tools that they are for."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detslurm.core._artifacts import ArtifactKind, artifact_of
from detslurm.sdk.export import FORMATS, ExportedTrial, Format, export
from detslurm.store import ExperimentDir, MetricRow, RunLog, TrialDir, trial_metrics
from detslurm.store.artifacts import ArtifactLog
from tests.cli.conftest import Detslurm
from tests.cli.export_readers import curves, from_tensorboard, in_mlflow, session_status
from tests.sdk.scenes import YAML, Scene

ARTIFACTS: list[tuple[str, Any, ArtifactKind]] = [
    ("sample", [[0.0, 0.5], [0.5, 1.0]], "image"),
    ("weights", [0.0, 1.0, 1.0], "histogram"),
    ("texts", [{"text": "hello there"}], "table"),
]

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
    finished = scene.run(experiment, 0, losses=[0.5, 0.25], end="completed")
    log = ArtifactLog(finished.path, 1)
    for name, value, kind in ARTIFACTS:
        log.add(artifact_of(name, 2, value, kind))
    log.close()
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


def exported(detslurm: Detslurm, to: str, folder: Path, *ids: int) -> dict[int, tuple[str, int]]:
    """What an export of experiments, or of experiment 1, did with each trial."""
    result = detslurm("experiment", "export", *(ids or (1,)), "--to", to, "-o", folder, "--json")
    assert result.status == 0, result.err
    return {one["trial"]: (one["change"], one["rows"]) for one in result.data}


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


def test_the_curves_arrive_and_an_export_writes_only_changed_trials(
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
    assert exported(detslurm, to, folder) == {1: ("unchanged", 0), 2: ("changed", 4)}
    two["training/loss"].append((3, 0.6))
    two["training/acc/top1"].append((3, 0.3))
    shutil.copytree(folder, tmp_path / "then")

    running.write_end(1, {"outcome": "preempted", "time": 2000.0})
    resume = {"uuid": "c", "steps": 1}
    scene.run(experiment, 1, resume=resume, losses=[0.4], end="completed")
    assert exported(detslurm, to, folder) == {1: ("unchanged", 0), 2: ("changed", 2)}
    again = {
        "training/loss": [(1, 0.9)],
        "training/acc/top1": [(1, 0.1)],
        "validation/loss": [(2, 0.4)],
    }
    then, now = curves(to, tmp_path / "then", folder)
    assert then == {1: one, 2: two}
    assert now == {1: one, 2: again}
    assert b"hush-hush" not in b"".join(path.read_bytes() for path in _paths(folder))
    if to in ("tensorboard", "wandb", "mlflow"):
        assert _image_arrived(folder)


def _image_arrived(folder: Path) -> bool:
    """As a file, or in an event file."""
    image = artifact_of("sample", 2, ARTIFACTS[0][1], "image").data
    return any(image in path.read_bytes() for path in _paths(folder))


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


def test_metrics_with_the_names_of_times_are_numbers_in_parquet(
    scene: Scene, tmp_path: Path, detslurm: Detslurm
) -> None:
    """Of the metrics' table only `time` is ours; in the trials' table there is no metric."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    trial = scene.run(scene.experiment())
    odd = [training(1, started=1.5, ended=3), training(2, started=2.5, ended=4)]
    report(trial, 1, [*odd, validation(2, ended=True, time=7)])
    assert exported(detslurm, "parquet", tmp_path) == {1: ("new", 3)}
    frame = pandas.read_parquet(tmp_path / "experiment-1" / "metrics.parquet")
    assert list(frame["started"][:2]) == [1.5, 2.5]
    assert list(frame["ended"]) == ["3", "4", "true"]
    assert frame["metrics.time"][2] == 7
    assert list(frame["time"]) == [
        pandas.Timestamp(n, unit="s", tz="UTC") for n in (1001, 1002, 1002)
    ]
    trials = pandas.read_parquet(tmp_path / "experiment-1" / "trials.parquet")
    assert trials["started"][0] == pandas.Timestamp(1000, unit="s", tz="UTC")
    assert str(trials["ended"].dtype) == "datetime64[us, UTC]" and trials["ended"].isna()[0]


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_tables_without_a_row_have_columns(
    scene: Scene, tmp_path: Path, detslurm: Detslurm, to: str
) -> None:
    """Of an experiment that reported nothing: a file without any is none that pandas reads."""
    pandas = pytest.importorskip("pandas")
    if to == "parquet":
        pytest.importorskip("pyarrow")
    scene.run(scene.experiment())
    assert exported(detslurm, to, tmp_path) == {1: ("new", 0)}
    path = tmp_path / "experiment-1" / f"metrics.{to}"
    frame = pandas.read_csv(path) if to == "csv" else pandas.read_parquet(path)
    assert list(frame) == ["experiment", "trial", "run", "group", "steps", "time"] and frame.empty


def test_a_torn_journal_and_a_broken_off_export_are_made_good(
    begun: tuple[Scene, ExperimentDir, TrialDir], tmp_path: Path, detslurm: Detslurm
) -> None:
    """What was begun is written again whole: nothing is there twice."""
    exported(detslurm, "tensorboard", tmp_path)
    journal = tmp_path / ".detslurm-tensorboard.jsonl"
    lines = journal.read_bytes().splitlines()
    begun_line = next(line for line in lines if b'"trial":2' in line)
    journal.write_bytes(b"\n".join(lines) + b"\n" + begun_line + b'\n{"run":"torn')
    assert exported(detslurm, "tensorboard", tmp_path) == {1: ("unchanged", 0), 2: ("changed", 3)}
    assert from_tensorboard(tmp_path)[2]["training/loss"] == [(1, 0.9), (2, 0.8)]
    assert set(exported(detslurm, "tensorboard", tmp_path).values()) == {("unchanged", 0)}


@pytest.mark.parametrize("to", ["tensorboard", "csv"])
def test_an_interrupted_export_begins_its_experiment_again(
    begun: tuple[Scene, ExperimentDir, TrialDir], tmp_path: Path, detslurm: Detslurm, to: Format
) -> None:
    """Nothing is there twice."""
    if to == "tensorboard":
        pytest.importorskip(to)

    def interrupt(trial: ExportedTrial) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export([begun[0].client.experiment(1)], to, tmp_path, progress=interrupt)
    found = exported(detslurm, to, tmp_path)
    assert {trial: change for trial, (change, _) in found.items()} == {1: "changed", 2: "new"}
    (there,) = curves(to, tmp_path)
    assert {trial: len(tags) for trial, tags in there.items()} == {1: 1, 2: 3}


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
    assert exported(detslurm, "csv", tmp_path)[1] == ("changed", 2)


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


def test_experiments_of_several_stores_are_exported_from_a_process_of_its_own(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each from its store, in the order in which they were given."""
    other = Scene(tmp_path / "other")
    for one, losses in ((scene, (0.1, 0.2, 0.3)), (other, (0.4, 0.5))):
        for loss in losses:
            one.run(one.experiment(), losses=[loss], end="completed")
    given = [(scene, 1), (other, 2), (scene, 3)]
    monkeypatch.setattr("detslurm.sdk.export.updating._ISOLATED", ("csv",))
    done = export([one.client.experiment(n) for one, n in given], "csv", tmp_path / "out")
    marks = [one.store.experiment(n).mark_in(None) for one, n in given]
    assert [one.run_id.partition("-")[0] for one in done] == marks
    found = []
    for trial in done:
        path = tmp_path / "out" / f"experiment-{trial.experiment}" / "metrics.csv"
        with path.open(newline="") as file:
            found += [float(row["loss"]) for row in csv.DictReader(file)]
    assert found == [0.1, 0.5, 0.3]


def test_an_imported_copy_is_another_experiment(
    scene: Scene, tmp_path: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle keeps the time at which the original was created: it alone does not tell them
    apart, nor copies of one bundle. The original's runs stay what they were before."""
    scene.run(scene.experiment(1), losses=[0.5], end="completed")
    mark = hashlib.sha256(repr(scene.store.experiment(1).created().time).encode()).hexdigest()[:12]
    bundle, folder = tmp_path / "a.tar", tmp_path / "out"
    scene.client.experiment(1).bundle(bundle)
    copies = [scene.client.import_bundle(bundle).experiment_id for _ in range(2)]
    ids = (1, *copies)
    result = detslurm("experiment", "export", *ids, "--to", "csv", "-o", folder, "--json")
    runs = [one["run_id"] for one in result.data]
    assert runs[0] == f"{mark}-1" and len({run.partition("-")[0] for run in runs}) == 3

    other = Scene(tmp_path / "other")
    assert other.client.import_bundle(bundle).experiment_id == 1
    monkeypatch.setenv("DETSLURM_ROOT", str(other.root))
    result = detslurm("experiment", "export", 1, "--to", "csv", "-o", folder)
    assert result.status == 1
    assert "has experiment 1 of another store" in result.err


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
    monkeypatch.setattr("detslurm.sdk.export.updating.find_spec", lambda name: None)
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


@pytest.mark.nightly
def test_mlflow_gets_metrics_and_parameters_of_any_name_and_is_told_of_new_ones(
    scene: Scene, tmp_path: Path, detslurm: Detslurm
) -> None:
    """It refuses names that are not plain paths, with all that is written beside them. None takes
    the place of another, at later exports as at the first. A run is found by its id; what it and
    its experiment are called is what they are now."""
    _installed("mlflow")
    text = YAML.replace("data: {", "data: {'https://a.b/c': 1, '../x': 2, '?/x': 3, '!/x': 4, ")
    trial = scene.run(scene.experiment(text=text))
    first = {"/loss": 1, "a//b": 2, "..": 3, "a/./b/": 4, "acc@1": 5, "acc!1": 6, "l" * 300: 7}
    report(trial, 1, [training(1, **first, **{"l" * 301: 8})])
    renamed = scene.experiment(2, about={"labels": ("night run", "kept"), "description": "old"})
    scene.run(renamed, 0, losses=[0.5], end="completed")
    scene.run(renamed, 1, losses=[0.5])
    new = {1: ("new", 1), 2: ("new", 1), 3: ("new", 1)}
    assert exported(detslurm, "mlflow", tmp_path, 1, 2) == new

    report(trial, 1, [training(2, **{"acc!1": 9})])
    stored = scene.client.stored(2)
    stored.set_name("another")
    stored.set_description("d" * 30_000)
    stored.set_labels(["kept", "new"])
    changed = {1: ("changed", 2), 2: ("changed", 1), 3: ("changed", 1)}
    assert exported(detslurm, "mlflow", tmp_path, 1, 2) == changed

    (((_, _, (run,)), (name, description, runs)),) = in_mlflow(tmp_path)
    long = "training/" + "l" * 241
    assert run["metrics"] == {
        "training/_/loss": 1,
        "training/a/_/b": 2,
        "training/_": 3,
        "training/a/_/b/_": 4,
        "training/acc_1": 5,
        "training/acc_1_2": 9,
        long: 7,
        f"{long[:-2]}_2": 8,
    }
    prefix = "config.data."
    data = {name: value for name, value in run["params"].items() if name.startswith(prefix)}
    assert data.pop("config.data.secrets.token") == "********"
    assert data == {
        f"{prefix}https:/_/a.b/c": "1",
        f"{prefix}../x": "2",
        f"{prefix}_/x": "3",
        f"{prefix}_/x_2": "4",
    }

    assert name == "2 another" and set(description) == {"d"}
    assert {(run["name"], run["status"]) for run in runs} == {
        ("another/2", "FINISHED"),
        ("another/3", "RUNNING"),
    }
    for run in runs:
        labels = {tag for tag in run["tags"] if tag.startswith("label.")}
        assert labels == {"label.kept", "label.new"}


@pytest.mark.parametrize("to", [pytest.param("mlflow", marks=pytest.mark.nightly), "tensorboard"])
def test_what_ended_without_an_end_record_is_shown_as_ended_until_it_goes_on(
    scene: Scene, tmp_path: Path, detslurm: Detslurm, to: str
) -> None:
    """Trials that were stopped between two runs, and those whose job was lost; `activate` brings
    the latter back."""
    pytest.importorskip(to) if to not in ISOLATED else _installed(to)
    scene.run(scene.experiment(), losses=[0.5], end="preempted")
    scene.client.experiment(1).cancel()
    experiment = scene.experiment(job="8")
    scene.run(experiment, losses=[0.4], ref="8")
    scene.queue.put("8", "NODE_FAIL")
    assert scene.client.experiment(2).state == "ERROR"

    out, seen = tmp_path / "out", [tmp_path / then for then in ("lost", "active", "completed")]

    def export_to(then: Path) -> None:
        exported(detslurm, to, out, 1, 2)
        shutil.copytree(out, then)

    export_to(seen[0])
    scene.client.experiment(2).activate()
    export_to(seen[1])
    scene.run(experiment, losses=[0.3], end="completed")
    export_to(seen[2])
    assert (
        statuses(to, seen)
        == {
            "mlflow": [["KILLED", "FAILED"], ["KILLED", "RUNNING"], ["KILLED", "FINISHED"]],
            "tensorboard": [
                ["STATUS_FAILURE", "STATUS_FAILURE"],
                ["STATUS_FAILURE", None],
                ["STATUS_FAILURE", "STATUS_SUCCESS"],
            ],
        }[to]
    )


def statuses(to: str, folders: list[Path]) -> list[list[str | None]]:
    """How trials 1 and 2 have ended, as each folder has it."""
    if to == "mlflow":
        return [[runs[0]["status"] for _, _, runs in found] for found in in_mlflow(*folders)]
    return [
        [session_status(folder / f"experiment-{n}" / f"trial-{n}") for n in (1, 2)]
        for folder in folders
    ]


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
        ["strace", "--seccomp-bpf", "-f", "-qq", "-e", "trace=connect,sendto", "-o", trace,
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
