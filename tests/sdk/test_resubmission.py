"""What is submitted later for an experiment: by its configuration, and by what was set since."""

from __future__ import annotations

import errno
import os

import pytest

from detslurm.slurm import SlurmError, resubmit
from detslurm.slurm.resubmit import standby_request, successor_request, workers_request
from detslurm.store import ExperimentDir, fold_facts
from tests.sdk.scenes import Scene


def test_all_that_is_submitted_later_has_what_was_set(scene: Scene) -> None:
    """Successors of trials, workers of a search and the one that stands by."""
    experiment, _ = scene.search()
    stored = scene.client.stored(experiment.id)
    stored.set_weight(2)
    stored.set_priority(7)
    stored.set_resource_pool("low")
    stored.set_qos("long")
    facts = list(experiment.facts())
    later = (
        successor_request(facts, experiment, 0),
        workers_request(facts, experiment, 2),
        standby_request(facts, experiment, ["7"]),
    )
    assert {(r.nice, r.partition, r.qos) for r in later} == {(6, "low", "long")}


def test_a_configuration_behind_a_stale_handle_is_read_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As shared file systems have it now and then; it would end a successor's submission."""
    submitted, _ = scene.search()
    experiment = ExperimentDir.at(submitted.path)  # it has not read its configuration yet
    facts, real = list(experiment.facts()), os.read
    failures = [OSError(errno.ESTALE, "Stale file handle")]

    def stale(handle: int, size: int) -> bytes:
        if failures:
            raise failures.pop()
        return real(handle, size)

    monkeypatch.setattr(os, "read", stale)
    assert successor_request(facts, experiment, 0).command[-1] == "0"
    assert not failures


def test_a_submission_that_broke_off_between_arrays_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine went down, say: the trials of the arrays that were not queued any more are, once
    it is sure that no command is about to."""
    experiment = scene.experiment(trials=4, job=None)
    scene.submitted(experiment, "7", 0, 2)
    with pytest.raises(SlurmError, match="may go on just now"):
        scene.client.experiment(experiment.id).activate()
    monkeypatch.setattr(resubmit, "COMMAND_PATIENCE", 0.0)
    scene.client.experiment(experiment.id).activate()
    (request,) = scene.queue.requests
    assert request.count == 2 and request.command[-1] == "2"
    assert [(job.first_index, job.count) for job in fold_facts(experiment).jobs] == [(0, 2), (2, 2)]
