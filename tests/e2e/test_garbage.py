"""Garbage collection through the front door: submit, train, and look at the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.store import fold_facts
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk

pytestmark = pytest.mark.cluster

SCRIPT = """\
import pathlib
import time

import detslurm as det

LOSSES = {0: [0.6, 0.4, 0.5, None], 1: [0.9, 0.8, 0.7, 0.75], 2: [None, 0.1, 0.2, 0.3]}

with det.core.init() as core:
    curve = det.get_cluster_info().trial.hparams["curve"]
    for step, loss in enumerate(LOSSES[curve], 1):
        with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "weights").write_text(f"curve {curve} step {step}")
        if loss is not None:
            core.train.report_validation_metrics(step, {"loss": loss})
    while curve == 2 and not pathlib.Path("GO").exists():
        time.sleep(0.1)
"""

CONFIG = """\
searcher: {name: grid, metric: loss, max_length: 10}
hyperparameters: {curve: {type: categorical, vals: [0, 1, 2]}}
checkpoint_storage: {save_experiment_best: 2, save_trial_best: 1, save_trial_latest: 1}
max_restarts: 0
"""


def test_an_experiment_ends_with_the_checkpoints_of_its_policy(desk: Desk) -> None:
    """Those of ended trials go while others run; at the end exactly those of the policy are left,
    by the records and on the disk, and a stricter policy takes more of them."""
    assert desk.user.cwd is not None
    go = desk.user.cwd / "GO"
    script = SCRIPT.replace('"GO"', repr(str(go)))
    config = desk.project(script)
    text = config.read_text().partition("searcher:")[0] + CONFIG + "slurm: {slot_type: cpu}\n"
    config.write_text(text)
    number = desk.submit(config)

    def left() -> set[str]:
        folder = Path(desk.user.env["DETSLURM_ROOT"]) / "checkpoints"
        return {path.read_text() for path in folder.glob("*/weights")}

    # Nothing may go of the trial that still runs but what two better ones of all have displaced.
    early = {"curve 0 step 2", "curve 0 step 4", "curve 1 step 3", "curve 1 step 4"}
    wait_for(lambda: {name for name in left() if "curve 2" not in name} == early, PATIENCE, "early")
    assert desk.view(number).state == "ACTIVE"
    go.touch()
    desk.wait_for_state(number, "COMPLETED")
    final = early | {"curve 2 step 2", "curve 2 step 3", "curve 2 step 4"}
    wait_for(lambda: left() == final, PATIENCE, "the policy's checkpoints")
    links = [desk.experiment(number).path / name / "weights" for name in ("best", "latest")]
    wait_for(lambda: {link.read_text() for link in links} <= final, PATIENCE, "links to them")
    states = [c.state for i in range(3) for c in desk.trial(number, i).checkpoints]
    assert sorted(states) == ["COMPLETED"] * 7 + ["DELETED"] * 5
    assert not list((Path(desk.user.env["DETSLURM_ROOT"]) / "checkpoints").glob("*.partial"))
    assert fold_facts(desk.experiment(number)).checkpoints.kept == {}


KILLED = """\
import time

import detslurm as det

with det.core.init() as core:
    for step in range(1, 4):
        with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "weights").write_text(f"step {step}")
    print("saved", flush=True)
    time.sleep(600)
"""


def test_a_killed_experiment_is_collected_by_its_own_job(desk: Desk) -> None:
    """In the seconds until Slurm ends it; `gc` finds nothing then, and `delete` leaves nothing."""
    number = desk.submit(desk.project(KILLED))
    desk.wait_for_log(number, "saved")
    desk.run("experiment", "kill", str(number))
    desk.wait_for_state(number, "CANCELED")
    folder = Path(desk.user.env["DETSLURM_ROOT"]) / "checkpoints"

    def left() -> set[str]:
        return {path.read_text() for path in folder.glob("*/weights")}

    wait_for(lambda: left() == {"step 3"}, PATIENCE, "a collection")
    assert "There is nothing to delete" in desk.run("gc").stdout
    assert f"{number}" in desk.run("du").stdout
    desk.run("experiment", "delete", str(number), "--yes")
    assert left() == set()


FAILS = """\
import sys

import detslurm as det

with det.core.init() as core:
    latest = det.get_cluster_info().latest_checkpoint
    if latest is not None:
        with core.checkpoint.restore_path(latest) as path:
            print("left:", *sorted(p.read_text() for p in path.parent.glob("*/weights")))
        sys.exit()
    for step in range(1, 4):
        with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "weights").write_text(f"step {step}")
    sys.exit(1)
"""


def test_a_restart_finds_room(desk: Desk) -> None:
    """A full disk may have ended the run before: what the policy does not keep has gone."""
    number = desk.submit(desk.project(FAILS))
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["restart", "completed"]
    assert "left: step 3\n" in desk.log(number)
