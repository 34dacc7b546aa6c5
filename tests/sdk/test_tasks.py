"""Tasks: their configuration, their address, and the lists that keep them from experiments."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detslurm.config import load_experiment
from detslurm.config.errors import ConfigErrors
from detslurm.sdk.experiments.store_reader import StoreReader
from detslurm.sdk.tasks.document import duration, experiment_config, read_document
from detslurm.slurm import JobInfo
from detslurm.store import NotFound, StoreError, fs
from detslurm.store.address import current_address, publish_address
from tests.sdk.scenes import Scene

DOCUMENT = """\
description: a look around
resources: {slots: 2, resource_pool: short}
environment: {environment_variables: [A=1]}
bind_mounts: [{host_path: /data, container_path: data}]
idle_timeout: 1h30m
work_dir: /scratch
slurm: {time: 30, slot_type: cpu}
"""


def test_a_document_becomes_an_experiment(tmp_path: Path) -> None:
    """Determined's keys of tasks are known, options come first, and nothing restarts unasked."""
    path = tmp_path / "task.yaml"
    path.write_text(DOCUMENT)
    document = read_document("shell", str(path), ["resources.slots=3"], {"slurm": {"time": 5}})
    assert (document.idle_timeout, document.work_dir) == (5400.0, "/scratch")
    loaded = load_experiment(experiment_config(document, ["serve", "--all"]), root=tmp_path)
    config = loaded.config
    assert (config.name, config.description) == ("a look around", "a look around")
    assert (config.resources.slots_per_trial, config.resources.resource_pool) == (3, "short")
    assert config.slurm.time_seconds == 300
    assert (config.max_restarts, config.slurm.idle_guard.action) == (0, "warn")
    assert list(config.entrypoint)[-3:] == ["/scratch", "serve", "--all"]
    assert config.environment.environment_variables.of("cpu") == {"A": "1"}
    assert loaded.warnings == ()


def test_defaults_and_faults_of_documents(tmp_path: Path) -> None:
    """Servers run where they are started and end when idle; a command is its frozen context's."""
    command = read_document("command", overrides=["max_restarts=2"])
    assert (command.idle_timeout, command.work_dir, command.entrypoint) == (None, None, None)
    config = load_experiment(experiment_config(command, "make && make install"), root=tmp_path)
    assert (config.config.name, config.config.max_restarts) == ("make", 2)
    notebook = read_document("notebook")
    assert (notebook.idle_timeout, notebook.work_dir) == (1800.0, str(Path.cwd()))
    assert read_document("shell", overrides=["idle_timeout=0"]).idle_timeout is None
    for wrong in ("idle_timeout=soon", "work_dir=here", "searcher.name=grid", "entrypoint=7"):
        with pytest.raises(ConfigErrors, match=wrong.partition("=")[0].partition(".")[0]):
            read_document("shell", overrides=[wrong])
    assert [duration(text) for text in ("90", 90, "2h", "1m30s", "x", -1)] == [
        90, 90, 7200, 90, None, None,
    ]  # fmt: skip


def test_an_address_is_that_of_the_newest_run_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is its owner's, and no reader takes it once its run has ended or another has begun."""
    experiment = scene.experiment(about={"task": "shell"})
    trial = scene.run(experiment)
    env = {
        "DETSLURM_EXPERIMENT_DIR": str(experiment.path),
        "DET_TRIAL_ID": str(trial.id),
        "DET_TRIAL_RUN_ID": "1",
    }
    assert current_address(trial) is None
    published = publish_address(host="n1", port=7, token="secret", env=env)
    assert trial.address_path(1).stat().st_mode & 0o777 == 0o600
    assert current_address(trial) == published
    scene.queue.put("7", "RUNNING")
    task = scene.client.task(experiment.id)
    assert (task.address, task.state, task.node) == (published, "RUNNING", "n1")
    with monkeypatch.context() as patch:  # it names an ssh_config, which can name any program
        patch.setattr(fs, "owner_of", lambda path, **_: os.geteuid() + 1)
        with pytest.raises(StoreError, match="who alone may open it"):
            current_address(trial)
    trial.write_end(1, {"outcome": "preempted", "time": 2000.0})
    assert current_address(trial) is None
    scene.run(experiment, ref="8")
    assert current_address(trial) is None
    with pytest.raises(StoreError, match="no run"):
        publish_address(host="n1", env={})


def test_tasks_are_found_by_their_kind(scene: Scene) -> None:
    """Lists of experiments and `last` leave them out; an id of another kind is named."""
    experiment = scene.experiment()
    command = scene.experiment(about={"task": "command"}, job="8")
    shell = scene.experiment(about={"task": "shell"}, job="9")
    scene.run(command, end="error", reason="it failed")
    client = scene.client
    assert [one.id for one in client.list_experiments()] == [experiment.id]
    assert client.experiment("last").id == experiment.id
    assert client.task("last", "shell").id == shell.id
    assert [row.id for row in client.task_rows("command")] == [command.id]
    assert [row.exit_code for row in client.task_rows("command")] == [0]
    assert [row.task for row in client.rows()] == [None, "command", "shell"]
    live = StoreReader(scene.client)
    live.poll(None)
    assert [row.id for row in live.rows()] == [experiment.id]
    with pytest.raises(NotFound, match=f"{shell.id} is a shell, not a command"):
        client.task(shell.id, "command")
    with pytest.raises(NotFound, match="is an experiment"):
        client.task(experiment.id)
    names = {experiment.id: "det-1", shell.id: f"det-shell-{shell.id}"}
    scene.queue.rows = [
        JobInfo(str(number), "RUNNING", name=name, folder=f"{scene.root}/experiments/{number}/jobs")
        for number, name in names.items()
    ]
    assert [job.type for job in client.list_jobs()] == ["EXPERIMENT", "SHELL"]
