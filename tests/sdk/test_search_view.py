"""Searches as their users see and steer them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from detslurm.sdk import LifecycleError
from detslurm.sdk.experiments.polling import progress
from detslurm.sdk.experiments.snapshot import read
from detslurm.sdk.jobs.queues import Queues
from detslurm.sdk.searches.worker_pool import resume
from detslurm.store import NotFound, RunLog
from detslurm.store.records import SearchEnded
from tests.store.faults import refusing

from .scenes import CUSTOM, SEARCH, Scene


def reported(length: int, metric: float, index: int) -> dict[str, object]:
    return {"e": "validated", "trial": index, "length": length, "metric": metric}


def left(index: int, worker: str, outcome: str = "out_of_ops") -> dict[str, object]:
    return {"e": "run_ended", "trial": index, "worker": worker, "outcome": outcome}


def workers_are(scene: Scene, *state: str) -> None:
    for ref in ("7_0", "7_1", "7_2"):
        scene.queue.put(ref, *state)


class TestLooking:
    """How a search and its trials stand."""

    def test_only_trials_that_began_are_listed(self, scene: Scene) -> None:
        """Ids kept ready for what the search may create are counted, and no trials yet."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0")
        found = scene.client.experiment(experiment.id)
        assert [t.id for t in found.trials()] == [1]
        assert found.view.trial_count == 6 and found.state == "ACTIVE"
        assert "(1 RUNNING, 5 to come)" in progress(found)
        assert found.search is not None
        assert found.search.counts() == {
            "created": 3, "waiting": 2, "running": 1, "paused": 0, "closed": 0, "invalid": 0,
        }  # fmt: skip

    def test_trials_that_report_no_progress_have_some(self, scene: Scene) -> None:
        """By their steps, of what the search wants of them now; the experiment has its share."""
        text = SEARCH.replace("async_halving", "optuna").replace(" num_rungs: 2, divisor: 3,", "")
        for search, wanted, whole in ((SEARCH, 3, 0.0), (text, 9, 2 / 9 / 6)):
            experiment, log = scene.search(search)
            scene.works(experiment, log, "7_0", losses=[0.3, 0.2])
            found = scene.client.experiment(experiment.id)
            assert found.trials()[0].row.progress == pytest.approx(2 / wanted)
            assert found.view.progress == pytest.approx(whole)
            assert found.search is not None
            assert found.search.data()["progress"] == found.view.progress

    def test_the_part_of_a_stopped_search(self, scene: Scene) -> None:
        """One of six trials was done: trials that never came count, too."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0", losses=[0.1], end="completed")
        experiment.append({"type": "intent", "intent": "kill"})
        experiment.append(
            {
                "type": "search_ended",
                "created": 1,
                "closed": {"1": "completed"},
                "verdict": "canceled",
            }
        )
        found = scene.client.experiment(experiment.id)
        assert (found.state, found.view.trial_count) == ("CANCELED", 1)
        assert found.view.progress == pytest.approx(1 / 6)

    def test_the_rule_that_ended_a_search_is_its_reason(self, scene: Scene) -> None:
        """While trials at work leave, and after; an `activate` records it where no worker did."""
        text = SEARCH.replace("divisor: 3,", "divisor: 3, stop: {target: 0.2},")
        experiment, log = scene.search(text)
        index = scene.works(experiment, log, "7_0", losses=[0.5, 0.2], end="stopped")
        log.commit([{"e": "reported", "trial": index, "metric": 0.2}])
        found = scene.client.experiment(experiment.id)
        reason = "searcher.stop.target: trial 1 reported loss 0.2, and the target is 0.2"
        assert found.search is not None and found.search.data()["end_reason"] == reason
        assert (found.state, found.reason) == ("ACTIVE", None)
        log.commit([left(index, "7_0", "stopped")])
        resume(read(experiment), Queues(lambda name: scene.queue, scene.warnings.append))
        found = scene.client.experiment(experiment.id)
        assert (found.state, found.reason, found.row.progress) == ("COMPLETED", reason, 1.0)
        assert found.view.trial_states == {"COMPLETED": 3}
        assert found.trials()[1].row.run_count == 0

    def test_a_trial_is_where_its_worker_is(self, scene: Scene) -> None:
        """Not where an array's element of its number is."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_2")
        status = scene.client.trial(1).job_status
        assert status is not None and status.job_ref is not None
        assert (status.job_ref.ref, status.alive) == ("7_2", True)

    def test_a_trial_whose_worker_was_lost_has_ended(self, scene: Scene) -> None:
        """Where it has no restarts left: while the search goes on, and after it."""
        text = SEARCH.replace("slurm:", "max_restarts: 0\nslurm:")
        experiment, log = scene.search(text)
        index = scene.works(experiment, log, "7_0", losses=[0.5])
        log.commit([left(index, "7_0", "lost")])
        for _ in range(2):
            trial = scene.client.trial(1)
            (run,) = trial.view.runs
            assert (trial.state, run.outcome) == ("ERROR", "lost")
            assert trial.row.ended == run.ended == run.started
            experiment.append(SearchEnded(created=3, closed={1: "error", 2: None, 3: None}))

    def test_resting_and_waiting_trials_are_told_apart(self, scene: Scene) -> None:
        """One that rests at its rung is PAUSED; once it is promoted it is QUEUED."""
        experiment, log = scene.search()
        for ref, loss in (("7_0", 0.1), ("7_1", 0.2)):
            index = scene.works(experiment, log, ref, losses=[loss], end="out_of_ops")
            log.commit([reported(3, loss, index), left(index, ref)])
        states = [t.state for t in scene.client.experiment(experiment.id).trials()]
        assert states == ["PAUSED", "PAUSED"]
        scene.works(experiment, log, "7_2")
        log.commit([reported(3, 0.3, 2)])
        found = scene.client.experiment(experiment.id)
        assert [t.state for t in found.trials()] == ["QUEUED", "PAUSED", "RUNNING"]
        assert [t.view.state for t in found.trials()] == ["QUEUED", "PAUSED", "RUNNING"]
        assert found.search is not None
        low, top = found.search.rungs()
        assert (low.units, low.trials, low.best, low.best_trial) == (3, 3, 0.1, 1)
        assert (top.units, top.trials, top.outstanding, top.best) == (9, 0, 1, None)
        assert 0 < found.view.progress < 1

    def test_a_trial_that_waits_for_its_first_worker_can_be_looked_at(self, scene: Scene) -> None:
        """Its id is known, it is queued; its log can be followed from there."""
        experiment, log = scene.search()
        assert scene.client.trial(3).state == "QUEUED"
        first = scene.client.experiment(experiment.id).first_trial()
        assert (first.id, first.state) == (1, "QUEUED")
        scene.works(experiment, log, "7_0")
        assert first.reload().state == "RUNNING"

    def test_what_the_search_has_let_go_is_over(self, scene: Scene) -> None:
        """Before the whole search is, and also while it is paused; who was killed at its rung
        stays CANCELED."""
        experiment, log = scene.search()
        for index, ref in enumerate(("7_0", "7_1", "7_2") * 2):
            scene.works(experiment, log, ref, losses=[0.1 * index], end="out_of_ops")
            log.commit([reported(3, 0.1 * index, index), left(index, ref)])
            if index == 2:
                scene.works(experiment, log, "7_9")  # the best of the first three
                assert scene.client.trial(2).kill()

        def states() -> list[str]:
            return [trial.state for trial in scene.client.experiment(experiment.id).trials()]

        seen = ["RUNNING", "CANCELED", *["COMPLETED"] * 4]
        assert seen[:2] == states()[:2]
        while "PAUSED" in states() or "QUEUED" in states():
            index = scene.works(experiment, log, "7_0", losses=[1.0], end="out_of_ops")
            log.commit([reported(9, 1.0, index), left(index, "7_0")])
        assert states() == seen and not scene.client.trial(3).kill()
        scene.client.experiment(experiment.id).pause()
        assert states() == seen
        outcomes = {str(i + 1): t.outcome or "completed" for i, t in enumerate(log.state.trials)}
        experiment.append(
            {"type": "search_ended", "created": 6, "closed": outcomes, "verdict": "completed"}
        )
        scene.run(experiment, end="completed", ref="7_9")
        assert states() == ["COMPLETED", *seen[1:]]

    def test_a_trial_that_was_let_go_meanwhile_is_read_once_more(self, scene: Scene) -> None:
        """The search's log is newer than what was read of the trial: that is not the last word."""
        experiment, log = scene.search()
        index = scene.works(experiment, log, "7_0")
        found = scene.client.experiment(experiment.id)
        assert found.trials()[0].state == "RUNNING"
        trial = experiment.trial(1)
        with RunLog.open(trial.records_path(1)) as records:
            metrics = {"loss": 0.25}
            records.append({"t": "metrics", "group": "validation", "steps": 2, "metrics": metrics})
        trial.write_end(1, {"outcome": "completed", "time": 2.0})
        log.commit([reported(2, 0.25, index), left(index, "7_0", "completed")])
        found.set_name("renamed")  # reads the facts and the search's log
        found._snapshot.refresh()
        fresh = found.trials()[0].row
        assert (fresh.state, fresh.steps, fresh.progress) == ("COMPLETED", 2, 1.0)
        assert found.view.best_trial == 1

    def test_an_ended_search_lists_what_it_created(self, scene: Scene) -> None:
        """Trials that rested are completed, and the best of each rung is still known."""
        experiment, log = scene.search()
        index = scene.works(experiment, log, "7_0", losses=[0.1], end="out_of_ops")
        log.commit([reported(3, 0.1, index)])
        experiment.append(
            {"type": "search_ended", "created": 1, "closed": {"1": "completed"}, "verdict": None}
        )
        found = scene.client.experiment(experiment.id)
        assert (found.state, found.view.trial_count) == ("COMPLETED", 1)
        assert found.search is not None and found.search.rungs()[0].best == 0.1
        assert scene.queue.queries == []

    def test_what_could_not_be_read_is_no_part_of_a_cache(self, scene: Scene) -> None:
        """A search knows by itself that it failed; what its trials did is read again next time."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0", losses=[0.1], end="error")
        experiment.append(
            {"type": "search_ended", "created": 1, "closed": {"1": "error"}, "verdict": "error"}
        )
        start = experiment.trial(1).start_path(1)
        for _ in range(2):
            with refusing(start):
                (row,) = scene.client.rows()
            assert (row.state, row.trial_states) == ("ERROR", {"UNKNOWN": 1})
        (row,) = scene.client.rows()
        assert (row.state, row.trial_states, row.best_value) == ("ERROR", {"ERROR": 1}, 0.1)


class TestWorkers:
    """What becomes of a search whose workers vanish."""

    def test_a_dead_worker_is_no_matter_while_others_live(self, scene: Scene) -> None:
        """Another one takes its trial over: nothing is lost, and nobody has to act."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0")
        scene.queue.put("7_0", "NODE_FAIL")
        found = scene.client.experiment(experiment.id)
        assert found.state == "ACTIVE"
        assert found.message == "job 7_1 waits in the queue: other jobs come first (Priority)"
        assert not list(experiment.facts(2))

    def test_a_queued_search_says_what_it_waits_for(self, scene: Scene) -> None:
        """Its jobs and their reason, while none of them runs and unless they are to wait."""
        experiment, log = scene.search()
        found = scene.client.experiment(experiment.id)
        assert found.message == "job 7_0 waits in the queue: other jobs come first (Priority)"
        assert [job.job_id for job in found.view.jobs] == ["7"]
        scene.works(experiment, log, "7_0")
        assert scene.client.experiment(experiment.id).message is None
        workers_are(scene, "PENDING", "JobHeldUser")
        scene.client.experiment(experiment.id).pause()
        assert scene.client.experiment(experiment.id).message is None

    def test_a_search_without_workers_is_over_until_it_is_activated(self, scene: Scene) -> None:
        """With evidence that all are gone it failed; `activate` queues as many as are wanted."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0")
        workers_are(scene, "NODE_FAIL")
        found = scene.client.experiment(experiment.id)
        assert found.state == "ERROR"
        assert "activate" in str(found.trials()[0].row.end_reason)
        assert scene.client.rows()[0].state == "ERROR"
        found = scene.client.experiment(experiment.id)
        assert "activate" in str(found.message)  # a later look says it, too
        found.activate()
        (request,) = scene.queue.requests
        assert request.count == 3
        assert log.catch_up().waiting() == [0, 1, 2]
        again = scene.client.experiment(experiment.id)
        assert again.state == "ACTIVE"
        assert [t.state for t in again.trials()] == ["QUEUED"]

    def test_activate_takes_no_trial_from_workers_that_it_has_just_released(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Slurm starts them at once: what they take then is younger than the queue's answer. What
        one of them had before waits again, before anybody can ask for it."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0")
        found = scene.client.experiment(experiment.id)
        found.pause()
        workers_are(scene, "PENDING", "JobHeldUser")

        def release(refs: Collection[str]) -> None:
            assert log.catch_up().workers == {}
            for ref in ("7_2", "7_1", "7_0"):
                log.commit([{"e": "work_requested", "worker": ref}])

        monkeypatch.setattr(scene.queue, "release", release)
        found = scene.client.experiment(experiment.id)
        found.activate()
        assert scene.queue.requests == []
        assert log.catch_up().workers.keys() == {"7_0", "7_1", "7_2"}

    def test_activate_takes_no_trial_from_a_worker_that_it_did_not_know(self, scene: Scene) -> None:
        """It was submitted after the facts were read, which do not name it."""
        experiment, log = scene.search()
        one = read(experiment)
        scene.submitted(experiment, "8", 0, 1)
        scene.works(experiment, log, "8")
        assert resume(one, Queues(lambda name: scene.queue, scene.warnings.append))
        assert log.catch_up().workers == {"8": 0}

    def test_a_search_whose_end_nobody_recorded_is_ended_by_activate(self, scene: Scene) -> None:
        """Its last workers died between the last event and the record of the search's end."""
        experiment, log = scene.search()
        while not log.state.done:
            index = scene.works(experiment, log, "7_0", losses=[0.5], end="out_of_ops")
            length = log.state.trials[index].target_length
            assert length is not None
            log.commit([reported(length, 0.5, index), left(index, "7_0")])
        workers_are(scene, "NODE_FAIL")
        scene.client.experiment(experiment.id).activate()
        assert scene.queue.requests == []
        ended = scene.client.experiment(experiment.id)
        assert (ended.state, ended.view.trial_count) == ("COMPLETED", 6)

    def test_silence_is_no_evidence(self, scene: Scene) -> None:
        """Workers that nobody remembers leave the search as it is, with a message."""
        experiment, _ = scene.search()
        scene.queue.jobs.clear()
        found = scene.client.experiment(experiment.id)
        assert found.state == "ACTIVE"
        assert found.message is not None and "activate" in found.message

    def test_activate_leaves_alone_what_can_not_be_seen(self, scene: Scene) -> None:
        """Where the queue does not answer nothing is queued twice."""
        experiment, _ = scene.search()
        found = scene.client.experiment(experiment.id)
        scene.queue.down = True
        with pytest.raises(LifecycleError, match="again"):
            found.activate()
        assert scene.queue.requests == []

    def test_a_custom_search_waits_for_its_method(self, scene: Scene) -> None:
        """Without workers it is not lost: they come with the runner's next operations."""
        experiment, _ = scene.search(CUSTOM, workers=1)
        scene.queue.put("7", "COMPLETED")
        found = scene.client.experiment(experiment.id)
        assert found.state == "ACTIVE"
        assert found.message is not None and "runner of its method" in found.message


class TestWishing:
    """Intents act on workers."""

    def test_killing_a_trial_leaves_its_worker_alive(self, scene: Scene) -> None:
        """The worker is told to look, and goes on with the next trial."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0")
        assert scene.client.trial(1).kill()
        assert scene.queue.calls == [("notify", "7_0")]

    def test_pause_and_cancel_reach_workers_that_are_left(self, scene: Scene) -> None:
        """Jobs that have gone are not asked for."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0")
        scene.queue.jobs.pop("7_1")
        scene.client.experiment(experiment.id).pause()
        assert scene.queue.calls == [("hold", "7"), ("notify", "7")]
        scene.client.experiment(experiment.id).cancel()
        assert scene.queue.calls[-2:] == [("cancel", "7"), ("notify", "7")]

    def test_a_canceled_search_ends_once_its_trials_have(self, scene: Scene) -> None:
        """A worker that died meanwhile doesn't keep it."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0")
        scene.client.experiment(experiment.id).cancel()
        workers_are(scene, "CANCELLED")
        assert scene.client.experiment(experiment.id).state == "CANCELED"
        with pytest.raises(LifecycleError):
            scene.client.experiment(experiment.id).activate()

    def test_a_killed_search_can_be_deleted(self, scene: Scene) -> None:
        """As any experiment, although nobody recorded how it ended: lists read it once, and what
        came late goes with it."""
        experiment, log = scene.search()
        scene.works(experiment, log, "7_0", losses=[0.5], checkpoint="c1")
        scene.client.experiment(experiment.id).kill()
        workers_are(scene, "CANCELLED")
        scene.client.experiment(experiment.id).delete()
        assert list(scene.checkpoints.iterdir()) == []
        with pytest.raises(NotFound, match=f"experiment {experiment.id} was deleted"):
            scene.client.experiment(experiment.id)
        scene.client.stored(experiment.id, deleted=True).delete()
        assert scene.client.rows() == [] and scene.store.catalog().unfinished == []
        (experiment.path / "latest").symlink_to("nowhere")
        assert [one.kind for one in scene.client.gc().leftovers] == ["interrupted deletion"]
        assert [entry.name for entry in experiment.path.iterdir()] == ["facts"]
        assert scene.warnings == []
