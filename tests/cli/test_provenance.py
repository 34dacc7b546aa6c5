"""The record of what an experiment ran, from `submit` to `compare`, `rerun` and a crate."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocrate.rocrate import ROCrate

from detslurm.sdk.provenance import git
from tests.cli.conftest import Detslurm
from tests.sdk.scenes import YAML, Scene

Submit = Callable[[], str]


@pytest.fixture
def project(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed project; packages of its own lie in `packages`, which is in PYTHONPATH."""
    folder, packages = tmp_path / "project", tmp_path / "packages"
    folder.mkdir()
    (packages / "mylib-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.setenv("LOADEDMODULES", "cuda/12.4")
    monkeypatch.setattr(git, "LIMIT", 120.0)
    (folder / "experiment.yaml").write_text(YAML)
    (folder / "train.py").write_text("lr = 0.1\nprint(lr)\n")
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (
        ("init", "-q", "-b", "main"),
        ("add", "."),
        (*identity, "commit", "-q", "-m", "first"),
    ):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture
def submit(project: Path, detslurm: Detslurm) -> Submit:
    """Submits the project; returns what is printed for people."""

    def run() -> str:
        done = detslurm("submit", project / "experiment.yaml")
        assert done.status == 0, done.err
        return done.err

    return run


def test_one_line_or_one_package_tells_submissions_apart(
    scene: Scene, detslurm: Detslurm, project: Path, submit: Submit, tmp_path: Path
) -> None:
    """`submit` names what is uncommitted; `compare` shows the one difference, and no other."""
    assert "uncommitted" not in submit()
    submit()
    assert detslurm("compare", 1, 2, "--json").data["environment"] == {}
    (project / "train.py").write_text("lr = 0.2\nprint(lr)\n")
    assert "The code has uncommitted changes in 1 file\n" in submit()
    data = detslurm("compare", 1, 3, "--json").data
    assert data["environment"].keys() == {"git diff"} and data["code"].keys() == {"train.py"}
    (tmp_path / "packages" / "mylib-1.0.dist-info").rename(
        tmp_path / "packages" / "mylib-1.1.dist-info"
    )
    submit()
    data = detslurm("compare", 3, 4, "--json").data
    assert data["environment"] == {"package mylib": {"3": "1.0", "4": "1.1"}}
    assert data["code"] == {}
    assert "Environment:\n" in detslurm("compare", 3, 4).out
    # Four submissions: two states of the code, and two of the packages.
    assert len(list((scene.root / "provenance").iterdir())) == 4


def test_it_is_shown(detslurm: Detslurm, project: Path, submit: Submit) -> None:
    """As a text, as data and as a patch; `describe` has it in short."""
    (project / "train.py").write_text('api_key = "hush-hush"\n')
    submit()
    shown = detslurm("e", "provenance", 1).out
    assert "on main, uncommitted changes in 1 file\n" in shown
    assert "cuda/12.4" in shown and "hush" not in shown
    assert "more (--packages)" in shown and "mylib" not in shown and "torch " in shown
    assert "mylib 1.0" in detslurm("e", "provenance", 1, "--packages").out.splitlines()
    data = detslurm("e", "provenance", 1, "--json").data
    assert data["software"]["packages"]["mylib"] == "1.0" and data["code"]["changed_count"] == 1
    assert "hush" not in json.dumps(data)
    patch = detslurm("e", "provenance", 1, "--diff").out
    assert patch.startswith("diff --git a/train.py b/train.py\n") and "-lr = 0.1" in patch
    described = detslurm("e", "describe", 1).out
    assert data["code"]["commit"][:12] in detslurm("e", "describe", 1, "--json").data["code"]
    assert f"Code : {data['code']['commit'][:12]}" in described and "Software : Python" in described


def test_rerun_names_the_packages_that_changed(
    detslurm: Detslurm, project: Path, submit: Submit, tmp_path: Path
) -> None:
    """Its code is the copy, so that commit and patch are those of the first experiment."""
    (project / "train.py").write_text("lr = 0.2\n")
    submit()
    same = detslurm("e", "rerun", 1)
    assert same.status == 0 and "differs" not in same.err and "uncommitted" not in same.err
    (tmp_path / "packages" / "mylib-1.0.dist-info").rename(
        tmp_path / "packages" / "mylib-2.0.dist-info"
    )
    changed = detslurm("e", "rerun", 1)
    assert "the software differs from experiment 1's: mylib 1.0 -> 2.0." in changed.err
    assert "differs" not in detslurm("e", "fork", 1).err
    records = [detslurm("e", "provenance", n, "--json").data for n in (1, 3)]
    assert records[0]["code"] == records[1]["code"]


def test_a_process_run_crate(
    scene: Scene, detslurm: Detslurm, project: Path, submit: Submit, tmp_path: Path
) -> None:
    """Read back by the library for crates: actions with code, user, times and results."""
    (project / "train.py").write_text("lr = 0.2\n")
    submit()
    experiment = scene.store.experiment(1)
    scene.run(experiment, 0, losses=[3.0, 2.0], end="completed")
    scene.run(experiment, 1, losses=[4.0], end="error")
    target = tmp_path / "crate"
    assert detslurm("e", "provenance", 1, "--ro-crate", target).status == 0
    crate: Any = ROCrate(target)
    assert crate.root_dataset["conformsTo"].id.startswith("https://w3id.org/ro/wfrun/process/")
    first, second = crate.get("#trial-1"), crate.get("#trial-2")
    assert crate.root_dataset["mentions"] == [first, second]
    code = first["instrument"]
    assert first.type == "CreateAction" and code.type == "SoftwareApplication"
    record = detslurm("e", "provenance", 1, "--json").data
    assert code["softwareVersion"] == record["code"]["commit"]
    needed = {one["name"]: one.get("softwareVersion") for one in code["softwareRequirements"]}
    assert needed == {"python": record["software"]["python"], **record["software"]["packages"]}
    assert first["agent"].type == "Person" and first["startTime"] <= first["endTime"]
    assert {one["name"]: one["value"] for one in first["result"]} == {"loss": 2.0}
    assert first["actionStatus"].endswith("/CompletedActionStatus")
    assert second["actionStatus"].endswith("/FailedActionStatus")
    assert (target / "changes.diff").read_text() == record["code"]["diff"]
    assert "hush" not in "".join(path.read_text() for path in target.iterdir())
    again = detslurm("e", "provenance", 1, "--ro-crate", target)
    assert again.status == 1 and "exists already" in again.err


def test_a_bundle_takes_the_record_along(
    scene: Scene, detslurm: Detslurm, project: Path, submit: Submit, tmp_path: Path
) -> None:
    """The same at the other site, and in its report; garbage collection keeps it while it is
    needed, and no longer."""
    (project / "train.py").write_text("lr = 0.2\n")
    submit()
    for index in (0, 1):
        scene.run(scene.store.experiment(1), index, losses=[3.0], end="completed")
    file = tmp_path / "one.tar"
    assert detslurm("e", "bundle", 1, "-o", file, "--checkpoints", "none").status == 0
    before = detslurm("e", "provenance", 1, "--json").data
    records = scene.root / "provenance"
    kept = {path.name for path in records.iterdir()}
    for path in records.iterdir():
        path.unlink()
    assert detslurm("import", file).status == 0
    after = detslurm("e", "provenance", 2, "--json").data
    assert {path.name for path in records.iterdir()} == kept
    assert (after["code"], after["software"]) == (before["code"], before["software"])
    (part,) = scene.client.experiment(2).snapshot()["experiments"]
    assert part["code_version"].startswith(before["code"]["commit"][:12])

    for path in records.iterdir():
        os.utime(path, (1, 1))
    assert detslurm("gc").status == 0 and {path.name for path in records.iterdir()} == kept
    submit()  # names both records again, which makes them young
    assert detslurm("e", "delete", "1,2", "-y").status == 0
    detslurm("e", "kill", 3)
    assert detslurm("gc").status == 0 and {path.name for path in records.iterdir()} == kept
    assert detslurm("e", "delete", 3, "-y").status == 0
    for path in records.iterdir():
        os.utime(path, (1, 1))
    assert "unused record" in detslurm("gc").out
    assert not list(records.iterdir())


def test_without_a_record(scene: Scene, detslurm: Detslurm) -> None:
    """An experiment of before, or whose records are gone, is shown and compared all the same."""
    scene.experiment(1, job="7")
    scene.experiment(1, job="8")
    assert "Nothing is recorded" in detslurm("e", "provenance", 1).out
    assert detslurm("compare", 1, 2, "--json").data["environment"] == {}
    assert detslurm("e", "describe", 1).status == 0


def test_a_secret_of_a_container_is_masked(detslurm: Detslurm, project: Path) -> None:
    prefix = "slurm.container_prefix=[apptainer, exec, --docker-password, hush, i.sif]"
    detslurm("submit", project / "experiment.yaml", "--config", prefix)
    container = detslurm("e", "provenance", 1, "--json").data["container"]
    assert container == ["apptainer", "exec", "--docker-password", "********", "i.sif"]


def test_the_container_of_an_experiment_is_shown(detslurm: Detslurm, project: Path) -> None:
    """Its runtime and image, in the record and in the description."""
    words = ["slurm.container=podman", "environment.image=torch:2"]
    detslurm("submit", project / "experiment.yaml", *(f"--config={word}" for word in words))
    record = detslurm("e", "provenance", 1, "--json").data
    assert record["container"] == ["podman", "torch:2"]
    assert record["software"]["problem"] == "the packages in the container are unknown"
    assert record["unsure"] == "slurm.container"
    assert "Container : podman torch:2" in detslurm("e", "describe", 1).out
