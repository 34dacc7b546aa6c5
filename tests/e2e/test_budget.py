"""A budget in slot-hours on the real cluster: paused when it is used, on once it is raised."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

STEPS = 120
# Counts, a checkpoint every 5 steps; it needs some 25 seconds, more than its budget.
COUNTS = f"""\
    import time
    import detslurm as det

    def save(core, step):
        with core.checkpoint.store_path({{"steps_completed": step}}) as (path, _):
            (path / "step").write_text(str(step))

    with det.core.init() as core:
        first, latest = 0, det.get_cluster_info().latest_checkpoint
        if latest is not None:
            with core.checkpoint.restore_path(latest) as path:
                first = int((path / "step").read_text())
        for step in range(first + 1, {STEPS} + 1):
            time.sleep(0.2)
            core.train.report_validation_metrics(step, {{"loss": 1 / step}})
            if step % 5 == 0:
                save(core, step)
            if core.preempt.should_preempt():
                save(core, step)
                break
"""
GRID = """\
    name: test
    entrypoint: python3 train.py
    searcher: {name: grid, metric: loss}
    hyperparameters: {lr: {type: categorical, vals: [0.1, 0.2]}}
    slurm: {slot_type: cpu, budget: {slot_hours: 0.005}}
"""


def test_a_used_budget_pauses_and_a_raised_one_goes_on(desk: Desk) -> None:
    """Two trials use 18 slot-seconds: both save and are held, with the reason in list and describe.
    `activate` is refused until there is room; then each goes on from its last checkpoint, what both
    have used counts on, and no step is missing or told twice."""
    desk.write("grid/train.py", COUNTS)
    config = desk.write("grid/experiment.yaml", GRID)
    began = time.time()
    number = desk.submit(config)
    desk.wait_for_state(number, "PAUSED")

    def outcomes() -> list[list[str | None]]:
        return [desk.outcomes(number, index) for index in range(2)]

    wait_for(lambda: outcomes() == [["paused"], ["paused"]], PATIENCE, "both to save")
    job = desk.job(number)
    running = ("squeue", "--me", "--noheader", "--states=R,CG")
    wait_for(lambda: not desk.user.run(*running).stdout, PATIENCE, "both jobs to leave")

    data = unwrap(desk.run("experiment", "describe", str(number), "--json").stdout)
    assert data["pause_reason"].startswith("its budget is used (")
    assert 0.005 <= data["budget"]["used"] < 2 * (time.time() - began) / 3600
    listed = desk.run("experiment", "list").stdout
    assert data["pause_reason"] in listed
    why = unwrap(desk.run("job", "why", str(number), "--json").stdout)
    assert data["pause_reason"] in why["cause"] and "set budget" in why["remedy"]
    refused = desk.run("experiment", "activate", str(number), check=False)
    assert refused.returncode == 1 and f"experiment set budget {number} N" in refused.stderr
    saved = [desk.trial(number, index).latest_checkpoint for index in range(2)]

    desk.run("experiment", "set", "budget", str(number), "2")
    desk.run("experiment", "activate", str(number))
    desk.wait_for_state(number, "COMPLETED")
    assert job == desk.job(number)
    for index, checkpoint in enumerate(saved):
        trial = desk.trial(number, index)
        assert checkpoint is not None and trial.runs[1].resumed_from == checkpoint.uuid
        assert desk.outcomes(number, index) == ["paused", "completed"]
        assert (trial.restarts, trial.steps) == (0, STEPS)
        starts = [run.resumed_steps for run in trial.runs]
        assert all(before < after for before, after in pairwise(starts))
    after = unwrap(desk.run("experiment", "describe", str(number), "--json").stdout)
    runs = [run for index in range(2) for run in desk.trial(number, index).runs]
    lasted = sum((run.ended or 0) - (run.started or 0) for run in runs) / 3600
    assert after["budget"]["used"] == pytest.approx(lasted, rel=0.1)
    assert [fact["intent"] for fact in desk.experiment(number).facts() if "intent" in fact] == [
        "pause",
        "activate",
    ]
