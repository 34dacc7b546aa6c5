"""Which node is to blame, by the experiment's other runs, and when its jobs avoid it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import pytest

from detslurm.exec.bad_nodes import BadNodes
from detslurm.exec.intents import Intents
from detslurm.exec.worker_pool import WorkerPool
from detslurm.jobs.resubmit import successor_request, workers_request
from detslurm.searcher import State
from detslurm.store import ExperimentDir, fold_facts, fold_trial
from detslurm.store.records import NodeFailed
from tests.sdk.scenes import YAML, Scene


def blames(
    scene: Scene,
    experiment: ExperimentDir,
    index: int,
    node: str,
    wait: Callable[[float], object] = lambda seconds: None,
    nodes: Sequence[str] = (),
) -> bool:
    """Whether a trial's new run, which fails at once on the node, failed because of the node."""
    trial = scene.run(experiment, index, end="restart", nodes=nodes or [node])
    found = BadNodes(Intents(experiment), lambda: scene.queue)
    return found.is_to_blame(node, fold_trial(trial), 1.0, is_own_error=False, wait=wait)


def excluded(experiment: ExperimentDir) -> tuple[str, ...]:
    return successor_request(experiment.facts(), experiment, 0).exclude


def test_a_node_is_to_blame_only_while_others_work(scene: Scene) -> None:
    """Where nothing works, the code is; a trial that fails on two nodes is to blame itself."""
    experiment = scene.experiment(6)
    assert not blames(scene, experiment, 0, "n2")
    scene.run(experiment, 1, losses=[0.5], nodes=["n1"])
    assert blames(scene, experiment, 2, "n2")
    assert not blames(scene, experiment, 2, "n3")
    assert not blames(scene, experiment, 2, "n2"), "wherever it runs from then on"


def test_as_many_nodes_as_a_run_needs_must_work_elsewhere(scene: Scene) -> None:
    """Without the node no job of two nodes could start again."""
    experiment = scene.experiment(6)
    scene.run(experiment, 0, losses=[0.5], nodes=["n1"])
    assert not blames(scene, experiment, 1, "n2", nodes=["n2", "n1"])
    scene.run(experiment, 2, losses=[0.5], nodes=["n3"])
    assert blames(scene, experiment, 3, "n2", nodes=["n2", "n1"])


def test_as_many_nodes_stay_as_a_run_needs(scene: Scene) -> None:
    """Of four nodes one is excluded already, and runs need three."""
    experiment = scene.experiment(6)
    scene.run(experiment, 0, losses=[0.5], nodes=["n1", "n2", "n3"])
    others = [(trial, 1) for trial in fold_facts(experiment).trial_ids[4:]]
    experiment.append(NodeFailed(node="n3", runs=tuple(others), excluded=True))
    for index in (1, 2, 3):
        assert blames(scene, experiment, index, "n4", nodes=["n4", "n1", "n2"])
    assert excluded(experiment) == ("n3",)


def test_a_node_that_has_worked_gets_another_try(scene: Scene) -> None:
    """The first failure after a success is tried there again."""
    experiment = scene.experiment(6)
    scene.run(experiment, 0, losses=[0.5], nodes=["n1"])
    scene.run(experiment, 1, end="completed", nodes=["n2"])
    assert not blames(scene, experiment, 2, "n2")


def test_runs_that_last_longer_are_evidence_before_they_report(scene: Scene) -> None:
    """Data may take minutes to load elsewhere, and the node fails in a second: so a runner waits
    whether the others fail, too, and gives up at a signal."""
    experiment = scene.experiment(4)
    other = scene.run(experiment, 0, nodes=["n1"])
    assert not blames(scene, experiment, 1, "n2"), "nothing is known yet"

    def wait(seconds: float) -> None:
        earlier = time.time() - 60
        os.utime(other.start_path(1), (earlier, earlier))
        time.sleep(seconds / 2)

    assert blames(scene, experiment, 1, "n2", wait)


def test_runs_that_failed_and_wait_as_this_one_does_are_no_evidence(scene: Scene) -> None:
    """All fail at once by a fault of the code, and none has its end record yet."""
    experiment = scene.experiment(2)
    other = scene.run(experiment, 0, nodes=["n1"])
    earlier = time.time() - 60
    os.utime(other.start_path(1), (earlier, earlier))
    suspected = NodeFailed(node="n1", runs=((other.id, 1),), suspected=True)
    experiment.append(suspected)
    assert not blames(scene, experiment, 1, "n2")


def test_where_many_runs_failed_and_none_works_no_run_waits(scene: Scene) -> None:
    """All runs fail by a fault of the code: few facts say so, and no job is idle."""
    experiment = scene.experiment(70)
    scene.run(experiment, 0, nodes=["n1"])
    runs = tuple((trial, 1) for trial in fold_facts(experiment).trial_ids[2:66])
    experiment.append(NodeFailed(node="n3", runs=runs, suspected=True))
    known, waits = fold_facts(experiment).count, list[float]()
    assert not blames(scene, experiment, 1, "n2", waits.append)
    assert (fold_facts(experiment).count, waits) == (known, [])


def test_a_trial_that_comes_back_to_its_bad_node_does_not_go_round_for_ever(scene: Scene) -> None:
    """In a search other workers may take it there; then the node is excluded, or restarts count."""
    experiment = scene.experiment(4)
    scene.run(experiment, 0, losses=[0.5], nodes=["n1"])
    assert [blames(scene, experiment, 1, "n2") for _ in range(5)] == [True] * 3 + [False] * 2
    assert excluded(experiment) == ("n2",)


def test_after_the_third_failure_jobs_avoid_the_node(scene: Scene) -> None:
    """Those that wait, and all that are submitted from then on."""
    experiment = scene.experiment(8)
    scene.queue.put("7_7", "PENDING")
    scene.run(experiment, 0, losses=[0.5], nodes=["n1"])
    for index in (1, 2):
        assert blames(scene, experiment, index, "n2")
        assert not excluded(experiment)
    assert blames(scene, experiment, 3, "n2")
    assert excluded(experiment) == ("n2",)
    assert ("update", "7", {"ExcNodeList": "n2"}) in scene.queue.calls
    for index in (4, 5, 6):
        blames(scene, experiment, index, "n3")
    assert excluded(experiment) == ("n2",), "only as many as work: n1"


@pytest.mark.parametrize(
    ("own", "set_to"), [("--exclude=n[7,9]", ["n2,n[7,9]"]), ("-x ./broken-nodes", [])]
)
def test_waiting_jobs_avoid_the_users_own_nodes_still(
    scene: Scene, own: str, set_to: list[str]
) -> None:
    """An update replaces the whole list; of a file only sbatch knows what it names."""
    text = YAML.replace("{slot_type: cpu}", f"{{slot_type: cpu, sbatch_args: ['{own}']}}")
    experiment = scene.experiment(6, text=text)
    scene.queue.put("7_5", "PENDING")
    scene.run(experiment, 0, losses=[0.5], nodes=["n1"])
    assert all(blames(scene, experiment, index, "n2") for index in (1, 2, 3))
    updates = [call[2]["ExcNodeList"] for call in scene.queue.calls if call[0] == "update"]
    assert updates == set_to


def test_a_search_sends_no_more_workers_to_a_node_where_they_die(scene: Scene) -> None:
    """Those that have never asked for work; a worker that has is no evidence."""
    experiment, _ = scene.search()
    for index, node in enumerate(["n2", "n2", "n2", "n2"]):
        scene.queue.put(f"7_{index}", "FAILED", nodes=(node,))
    scene.queue.put("7_4", "RUNNING", nodes=("n1",))
    intents = Intents(experiment)
    intents.refresh()
    pool = WorkerPool(intents, ref="7_4", cluster=scene.queue)
    asked = State(requests={"7_4": 1, "7_0": 1, "7_1": 2})
    pool.avoid_bad_nodes(asked, scene.queue.jobs)
    assert not workers_request(experiment.facts(), experiment, 1).exclude
    pool.avoid_bad_nodes(State(requests={"7_4": 1}), scene.queue.jobs)
    assert workers_request(experiment.facts(), experiment, 1).exclude == ("n2",)
