"""A DeepSpeedTrial on two nodes: preempted, killed while it saves, and taken up on one slot."""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_main_job import make_room
from tests.launchers.workers import needs_deepspeed
from tests.light import LIGHT_JOBS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.xdist_group("deepspeed on a cluster"),  # one after the other: they compute most
    needs_deepspeed,
]

MODEL = Path(__file__).with_name("deepspeed_model.py")
CONFIG = """\
    name: test
    entrypoint: {entrypoint}
    hyperparameters: {{disturbed: {disturbed}}}
    searcher: {{name: single, metric: zero1, max_length: {{batches: 20}}}}
    resources: {{slots_per_trial: 2}}
    slurm: {{slot_type: cpu, slots_per_node: 1}}
    min_checkpoint_period: {{batches: 5}}
    min_validation_period: {{batches: 10}}
    checkpoint_policy: none
    checkpoint_storage: {{save_trial_latest: 9}}
    scheduling_unit: 1
    max_restarts: 1
    reproducibility: {{experiment_seed: 5}}
    environment: {{environment_variables: {light}}}
"""
LEGACY = "model_def:Trial"
HARNESS = "python3 -m detslurm.pytorch.harness model_def:Trial"
LAUNCHED = "python3 -m detslurm.launch.deepspeed --trial model_def:Trial"


def project(desk: Desk, name: str, entrypoint: str, *, disturbed: bool) -> Path:
    desk.write(f"{name}/model_def.py", MODEL.read_text())
    disturb = str(disturbed).lower()
    config = CONFIG.format(entrypoint=entrypoint, disturbed=disturb, light=LIGHT_JOBS)
    return desk.write(f"{name}/experiment.yaml", config)


def saved_tensors(desk: Desk, number: int, steps: int = 20) -> dict[str, bytes]:
    """Every tensor of all ranks in the last checkpoint, by file; nothing is unpickled."""
    latest = desk.trial(number).latest_checkpoint
    assert latest is not None and latest.steps == steps
    folder = desk.store.path / "checkpoints" / latest.uuid
    found = {}
    for file in folder.glob("model*/*.pt"):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                if "/data/" in name:
                    found[f"{file.relative_to(folder)}:{name}"] = archive.read(name)
    return found


def parts_of(tensors: Collection[str]) -> list[int]:
    """How many ranks have saved a part of each engine's optimizer."""
    files = {name.partition(":")[0] for name in tensors if "optim_states" in name}
    return [sum(file.startswith(f"model{index}/") for file in files) for index in range(3)]


def go_on_on_one_slot(desk: Desk, config: Path, whole: int) -> None:
    """It goes on from batch 10 as the two slots themselves did."""
    wanted = desk.metrics(whole, "training")[10:14]
    (saved,) = [point.uuid for point in desk.trial(whole).checkpoints if point.steps == 10]
    number = desk.submit(
        config,
        f"searcher.source_checkpoint_uuid={saved}",
        "searcher.max_length.batches=4",
        "resources.slots_per_trial=1",
        "slurm.slots_per_node=1",
        f"entrypoint={HARNESS}",
    )
    assert desk.wait_for_state(number, "COMPLETED", "ERROR") == "COMPLETED", desk.log(number)
    found = desk.metrics(number, "training")
    for name in ("zero1", "zero3"):
        ours, theirs = ([row.metrics[name] for row in rows] for rows in (found, wanted))
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert desk.log(number).count("for another number of ranks") == 3  # once for each engine
    assert not list((desk.store.path / "checkpoints").glob("*.partial"))


@pytest.mark.nightly
def test_a_disturbed_training_ends_as_one_that_was_not(desk: Desk, site: Cluster) -> None:
    """ZeRO 1 to 3, accumulation and dropout on two ranks of two nodes. Preempted while one in
    the background was not written, which is completed first; then robbed of a rank that had
    written half of its file of another one, two batches later: that one never counts nor remains,
    the next run goes on from the one before, and every loss and all saved tensors are those of a
    training in one go, saved in the foreground, to the bit; which the older form of entrypoint has
    started. One slot goes on from a checkpoint of it, too."""
    undisturbed = project(desk, "whole", LEGACY, disturbed=False)
    keep_all = "checkpoint_storage.save_trial_latest=9"
    whole = desk.submit(undisturbed, keep_all)
    held = project(desk, "disturbed", LAUNCHED, disturbed=True)
    number = desk.submit(held, "resources.resource_pool=low", keep_all)
    desk.wait_for_steps(number, 6)
    high = make_room(desk)
    site.wait_state(high, "RUNNING", "COMPLETED")

    for each in (whole, number):
        state = desk.wait_for_state(each, "COMPLETED", "ERROR", timeout=2 * PATIENCE)
        assert state == "COMPLETED", desk.log(each)
    trial = desk.trial(number)
    assert [run.outcome for run in trial.runs] == ["preempted", "restart", "completed"]
    assert [run.resumed_steps for run in trial.runs[1:]] == [7, 10]
    assert "was killed by SIGKILL" in (trial.runs[1].reason or "")
    saved = [(checkpoint.run, checkpoint.steps) for checkpoint in trial.checkpoints]
    assert saved == [(1, 5), (1, 7), (2, 10), (3, 15), (3, 20)]
    known = {
        checkpoint.uuid for one in (whole, number) for checkpoint in desk.trial(one).checkpoints
    }
    found = {path.name for path in (desk.store.path / "checkpoints").iterdir()}
    assert found - {"tensorboard"} == known
    for group in ("training", "validation"):
        ours, theirs = desk.metrics(number, group), desk.metrics(whole, group)
        assert [(r.steps, r.metrics) for r in ours] == [(r.steps, r.metrics) for r in theirs]
    assert [r.steps for r in desk.metrics(whole, "training")] == list(range(1, 21))
    tensors = saved_tensors(desk, whole)
    assert parts_of(tensors) == [2, 2, 2]
    assert saved_tensors(desk, number) == tensors
    go_on_on_one_slot(desk, undisturbed, whole)
