"""`detslurm submit`, as far as it goes without a cluster."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from detslurm.slurm import ClusterLimits, JobRequest, SlurmError
from detslurm.store import ExperimentDir
from detslurm.store.errors import explained
from detslurm.store.run_usage import Requested, RunUsage
from detslurm.store.used_resources import remember_used
from tests.config.bent import BENT, Bent
from tests.sdk.scenes import CUSTOM, SEARCH, YAML, Scene

from .conftest import CommandResult, Detslurm


@pytest.fixture
def config(scene: Scene, tmp_path: Path) -> Path:
    """Where a configuration goes, beside its code."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("")
    return folder / "experiment.yaml"


def assert_refused(bent: Bent, result: CommandResult) -> None:
    """One screen that says where and what, and the exit code of a wrong call."""
    assert result.status == 2, (bent.name, result)
    assert result.out == ""
    assert "Traceback" not in result.err
    assert len(result.err.splitlines()) <= 60
    assert all(fragment in result.err for fragment in bent.fragments), (bent.name, result.err)


def test_bent_configurations_are_refused(scene: Scene, config: Path, detslurm: Detslurm) -> None:
    """Every one of them: nothing is queued, nothing is written."""
    for bent in BENT:
        config.write_text(bent.text)
        assert_refused(bent, detslurm("submit", config))
    assert scene.queue.requests == []
    assert not list((scene.root / "experiments").glob("*/facts/*"))


def test_a_custom_search_is_refused(scene: Scene, config: Path, detslurm: Detslurm) -> None:
    """Without its method it would wait without end: the message says who submits it."""
    config.write_text(CUSTOM)
    result = detslurm("submit", config)
    assert result.status == 1 and "LocalSearchRunner" in result.err
    assert not (scene.root / "experiments" / "1").exists() and scene.queue.requests == []


def test_a_search_of_both_generations(scene: Scene, config: Path, detslurm: Detslurm) -> None:
    """The newer one counts, which is said; what `experiment config` prints of a search is the same
    search when it is submitted again: there both generations are one."""
    newer = "time_metric: batches, max_time: 9, "
    config.write_text(SEARCH)
    promotes = detslurm("submit", config, "--json").data["experiment_id"]
    config.write_text(SEARCH.replace("max_length:", newer + "max_length:"))
    result = detslurm("submit", config, "--json")
    assert "counts, not the deprecated max_length: searcher.time_metric (line 3)" in result.err
    stops = result.data["experiment_id"]
    for first, stop_once in ((promotes, None), (stops, True)):
        config.write_text(detslurm("experiment", "config", first).out)
        again = detslurm("submit", config, "--json")
        assert "not the deprecated" not in again.err
        ids = (first, again.data["experiment_id"])
        ours, printed = (scene.store.experiment(id).config()["searcher"] for id in ids)
        assert ours == printed and ours["stop_once"] is stop_once


def test_a_disk_that_fills_up_between_two_arrays(
    scene: Scene, config: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays in the queue, though the store can't even be told so."""
    config.write_text(YAML)

    def full(directory: ExperimentDir, record: object) -> int:
        raise explained(OSError(errno.ENOSPC, ""), str(directory.path))

    monkeypatch.setattr(ExperimentDir, "append", full)
    result = detslurm("submit", config)
    assert result.status == 1 and "space" in result.err and "Traceback" not in result.err
    assert {job.state for job in scene.queue.jobs.values()} == {"CANCELLED"}


def test_a_refused_array_is_named_though_the_queue_falls_silent(
    scene: Scene, config: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is queued already can't be taken back; its runners find the intent to end."""
    config.write_text(YAML)
    limits = ClusterLimits(cluster="test", max_array_size=1)
    monkeypatch.setattr(scene.queue, "limits", lambda: limits)
    submit = scene.queue.submit

    def once(request: JobRequest) -> str:
        if scene.queue.requests:
            scene.queue.down = True
            raise SlurmError("Job violates accounting/QOS policy")
        return submit(request)

    monkeypatch.setattr(scene.queue, "submit", once)
    result = detslurm("submit", config)
    assert result.status == 1 and "violates accounting" in result.err
    assert scene.client.stored(1, deleted=True).state == "DELETED"


PACKED = YAML.replace("slot_type: cpu", "slot_type: cpu, trials_per_job: 2").replace(
    "0.2]", "0.2, 0.3]"
)


@pytest.mark.parametrize(
    ("text", "jobs"),
    [
        (SEARCH, "3 workers, 3"),
        (YAML, "2 trials, 2"),
        (PACKED, "2 times 2 trials, 2"),
    ],
)
def test_a_dry_run_says_what_the_jobs_are(
    config: Path, detslurm: Detslurm, text: str, jobs: str
) -> None:
    """The jobs of a search work at any of its trials; else each has its own, or some."""
    config.write_text(text)
    assert f"arrays: {jobs} at once" in detslurm("submit", config, "--dry-run").out


PBT = YAML.replace(
    "{name: grid, metric: loss, max_length: 10}",
    "{name: pbt, metric: loss, population_size: 10, num_rounds: 3, length_per_round: 5}",
)


def test_one_round_has_no_serial_ones(
    config: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    (profile := config.parent / "site.yaml").write_text("submit_from_jobs: false\n")
    monkeypatch.setenv("DETSLURM_SITE", str(profile))
    config.write_text(PBT.replace("num_rounds: 3", "num_rounds: 1"))
    done = detslurm("submit", config, "--dry-run")
    assert done.status == 0 and "one after the other" not in done.err


@pytest.mark.parametrize("may_submit", [True, False])
def test_a_dry_run_counts_the_copies_of_a_population(
    config: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch, may_submit: bool
) -> None:
    """As the preview does; where no job may queue others, it is said that rounds have one worker
    after the first."""
    (profile := config.parent / "site.yaml").write_text(f"submit_from_jobs: {may_submit}\n".lower())
    monkeypatch.setenv("DETSLURM_SITE", str(profile))
    config.write_text(PBT)
    done = detslurm("submit", config, "--dry-run", "--json")
    assert done.data["trials"] == detslurm("preview-search", config, "--json").data["trials"] == 14
    assert ("members train one after the other" in done.err) == (not may_submit)


def test_who_asks_again_for_far_more_than_was_used_is_told(
    scene: Scene, config: Path, detslurm: Detslurm
) -> None:
    """By the last experiment that asked for the same; other requests and code are told nothing."""
    asking = f"{YAML}resources: {{slots_per_trial: 8}}\n".replace(
        "slurm: {slot_type: cpu}", "slurm: {slot_type: cpu, sbatch_args: [--mem=64G]}"
    )
    config.write_text(asking)
    assert "used" not in detslurm("submit", config).err
    directory = scene.store.experiment(1)
    usage = RunUsage(requested=Requested(slots=8, cpus=8, memory=64 << 30))
    usage.add({"seconds": 100.0, "cpu": 110.0, "resident": 9 << 30}, now=1.0)
    for trial in (1, 2):
        directory.trial(trial).open_run({"time": 0.0})
        directory.trial(trial).write_end(1, {"outcome": "completed", "usage": usage.to_dict()})
    remember_used(directory, [1, 2])

    told = "trials of experiment 1 used 9 of 64 GB of memory and 1.1 of 8 CPUs"
    assert told in detslurm("submit", config).err
    assert told in detslurm("submit", config, "--dry-run").err
    for less in ("slurm.sbatch_args=[--mem=12G]", "entrypoint=python3 train.py --big"):
        assert "used" not in detslurm("submit", config, "--config", less).err
    (scene.store.own("used-resources.json")).write_text("{broken")
    assert detslurm("submit", config).status == 0


def test_what_experiments_write_is_no_code(
    scene: Scene, config: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store and checkpoints inside of the project: else each submission copies all before it."""
    project = config.parent
    monkeypatch.setenv("DETSLURM_ROOT", str(project / "runs"))
    saved = project / "saved"
    config.write_text(f"{YAML}checkpoint_storage: {{type: shared_fs, host_path: {saved}}}\n")
    (saved / "checkpoints" / "uuid").mkdir(parents=True)
    (saved / "checkpoints" / "uuid" / "weights").write_text("x")
    (project / "linked").symlink_to(project / "runs")
    for number in (1, 2):
        result = detslurm("submit", config)
        assert result.status == 0, result
        code = project / "runs" / "experiments" / str(number) / "code"
        assert {path.name for path in code.iterdir()} == {"experiment.yaml", "train.py", "saved"}
        assert not any((code / "saved").iterdir())
    assert f"{project / 'runs'} is left out: it holds the store of experiments" in result.err
    assert f"{saved / 'checkpoints'} is left out: it holds checkpoints" in result.err


def test_a_file_in_place_of_the_directory(config: Path, detslurm: Detslurm) -> None:
    """The message says what is expected; of what is not there it says that."""
    config.write_text(YAML)
    file = config.parent / "train.py"
    refused = detslurm("submit", config, file)
    assert refused.status == 1 and f"{file} is no directory" in refused.err
    assert f"which is {config.parent} here" in refused.err
    assert f"{file}.old does not exist" in detslurm("submit", config, f"{file}.old").err


def test_a_refused_entrypoint_in_what_is_left_out(config: Path, detslurm: Detslurm) -> None:
    """The file is there, so that the message says why it is not copied."""
    (config.parent / "venv").mkdir()
    (config.parent / "venv" / "pyvenv.cfg").write_text("")
    config.write_text(YAML)
    refused = detslurm("submit", config, "--config", "entrypoint=venv/bin/python train.py")
    assert refused.status == 1 and "no file 'venv/bin/python'" in refused.err
    assert f"{config.parent / 'venv'} is left out: it is a virtual environment" in refused.err


def test_what_was_included_is_in_copies_of_the_experiment(
    scene: Scene, config: Path, detslurm: Detslurm
) -> None:
    """An environment, too, which no submission takes without being told."""
    environment = config.parent / "venv"
    environment.mkdir()
    (environment / "pyvenv.cfg").write_text("")
    config.write_text(YAML)
    assert detslurm("submit", config, "--include", environment).status == 0
    assert detslurm("e", "rerun", 1).status == 0
    for number in (1, 2):
        assert (scene.root / f"experiments/{number}/code/venv/pyvenv.cfg").is_file()


def test_a_store_is_no_project(
    scene: Scene, config: Path, detslurm: Detslurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is queued; checkpoints that go beside the code have always been allowed."""
    project = config.parent
    beside = f"{{type: shared_fs, host_path: {project.parent}, storage_path: {project.name}}}"
    config.write_text(f"{YAML}checkpoint_storage: {beside}\n")
    assert detslurm("submit", config).status == 0
    queued = len(scene.queue.requests)
    monkeypatch.setenv("DETSLURM_ROOT", str(project))
    refused = detslurm("submit", config)
    assert refused.status == 1 and "submit code from a directory of its own" in refused.err
    assert len(scene.queue.requests) == queued
