"""What a user sees of a running search, and may want of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_search import (
    ASHA,
    LEARNS,
    hold_back,
    let_go,
    project,
    state_of,
    wait_until_working,
)
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]


def described(desk: Desk, number: int) -> dict[str, Any]:
    """`experiment describe --json`."""
    data: dict[str, Any] = unwrap(desk.run("experiment", "describe", str(number), "--json").stdout)
    return data


def begin(desk: Desk) -> int:
    """A search whose four workers are in the middle of their first trials."""
    number = desk.submit(project(desk, LEARNS, ASHA), "--paused")
    hold_back(desk, number)
    desk.run("experiment", "activate", str(number))
    wait_until_working(desk, number, 4)
    return number


def test_a_user_looks_and_intervenes(desk: Desk) -> None:
    """Killing a trial costs no worker; pausing lets all leave, and activating goes on."""
    number = begin(desk)
    data = described(desk, number)
    assert (data["search"]["trials"]["running"], data["trial_count"]) == (4, 8)
    assert [rung["units"] for rung in data["search"]["brackets"][0]["rungs"]] == [3, 9]
    assert {trial["state"] for trial in data["trials"]} == {"RUNNING"}
    victim = data["trials"][0]["id"]
    worker = data["trials"][0]["job"]["ref"]
    desk.run("trial", "kill", str(victim))
    wait_for(lambda: state_of(desk, number).trials[0].outcome, PATIENCE, "the trial's end")
    assert state_of(desk, number).trials[0].outcome == "canceled"
    wait_for(lambda: worker in state_of(desk, number).workers, PATIENCE, "its worker's next trial")
    desk.run("experiment", "pause", str(number))
    wait_for(lambda: not state_of(desk, number).workers, PATIENCE, "nobody at work")
    assert described(desk, number)["state"] == "PAUSED"
    let_go(desk, number)
    desk.run("experiment", "activate", str(number))
    desk.wait_for_state(number, "COMPLETED")
    data = described(desk, number)
    assert data["search"]["verdict"] == "completed" and data["progress"] == 1.0
    assert data["trial_states"] == {"CANCELED": 1, "COMPLETED": 7}
    text = desk.run("experiment", "describe", str(number)).stdout
    assert "Bracket | Rung | Batches" in text


def test_a_search_whose_jobs_were_canceled_by_hand_can_go_on(desk: Desk, site: Cluster) -> None:
    """`scancel` of all workers leaves trials that nobody runs: an error, until `activate`."""
    number = begin(desk)
    desk.user.run("scancel", *[job.job_id for job in desk.view(number).jobs])
    desk._wait(number, lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")
    wait_for(lambda: described(desk, number)["state"] == "ERROR", PATIENCE, "evidence of the end")
    assert described(desk, number)["trial_states"] == {"CANCELED": 4}
    said = desk.run("experiment", "describe", str(number)).stdout
    assert "`detslurm e activate` submits new ones" in said
    let_go(desk, number)
    desk.run("experiment", "activate", str(number))
    desk.wait_for_state(number, "COMPLETED")
    assert desk.view(number).trial_states == {"CANCELED": 4, "COMPLETED": 4}
