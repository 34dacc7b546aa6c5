"""Jobs of the queue, in Determined's terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detslurm.sdk import Client, Job
from detslurm.sdk.jobs.resource_pool import pools
from detslurm.sdk.jobs.slots import slots_of
from detslurm.slurm import ClusterLimits, JobInfo, NodeInfo, PartitionLimits
from detslurm.store import NotFound
from detslurm.store.facts import put_record
from detslurm.store.fs import ensure_directory
from detslurm.store.unmanaged import claims_folder, inherit_claims
from tests.sdk.scenes import Queue, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A store and its queue."""
    return Scene(tmp_path)


def _row(job_id: str, state: str = "PENDING", **more: Any) -> JobInfo:
    given = {"partitions": ("main",), "user": "alice", "cpus": 2, "name": "job", **more}
    return JobInfo(ref=job_id, state=state, **given)


def _listed(scene: Scene, *rows: JobInfo) -> list[Job]:
    scene.queue.rows = list(rows)
    return scene.client.list_jobs()


def test_elements_in_the_same_condition_are_one_job(scene: Scene) -> None:
    """What runs, what waits for the throttle, what is held: each once, with all its slots."""
    waits: dict[str, Any] = {"reason": "JobArrayTaskLimit", "priority": 5, "gpus": 2}
    runs, rest, held = _listed(
        scene,
        _row("9_[4-5]", **waits),
        _row("9_0", "RUNNING", started=50.0, gpus=2, nodes=("n2",)),
        _row("9_1", "RUNNING", started=40.0, gpus=2, nodes=("n1", "n2")),
        _row("9_2", **waits),
        _row("9_3", reason="JobHeldUser", priority=0, gpus=2),
    )
    assert (runs.id, rest.id, held.id) == ("9_[0-1]", "9_[2,4-5]", "9_3")
    assert [job.position for job in (runs, rest, held)] == [0, 1, 2]
    assert (runs.state, runs.slots_acquired, runs.slots_needed) == ("RUNNING", 4, 4)
    assert (runs.started, runs.nodes, runs.reason) == (40.0, ["n1", "n2"], "")
    assert (rest.state, rest.slots_acquired, rest.slots_needed) == ("QUEUED", 0, 6)
    assert rest.refs == ["9_2", "9_4", "9_5"]
    assert (rest.reason, held.reason_text) == ("JobArrayTaskLimit", "held by its user")
    assert held.held


def test_whose_job_it_is_follows_from_its_directory(scene: Scene) -> None:
    """Jobs of this store have an experiment and trials; all others are Slurm's."""
    scene.experiment(trials=3, job="9")
    folder = str(scene.root / "experiments" / "1" / "jobs")
    ours, other, foreign = _listed(
        scene,
        _row("9_[1-2]", folder=folder, comment="digits", nice=3, name="detslurm-1"),
        _row("10", folder="/home/bob/detslurm/experiments/1/jobs", user="bob", nice=0),
        _row("11", folder="/home/bob"),
    )
    assert (ours.type, ours.experiment_id, ours.trial_ids) == ("EXPERIMENT", 1, [2, 3])
    assert (ours.name, ours.priority) == ("digits", 4)
    assert (other.type, other.experiment_id, other.trial_ids) == ("SLURM", None, [])
    assert (other.name, other.priority, other.nice) == ("job", None, 0)
    assert foreign.type == "SLURM"
    assert ours.to_dict()["trial_ids"] == [2, 3]


def test_jobs_of_an_experiment_that_cant_be_read_have_no_trials(scene: Scene) -> None:
    """Its facts may be there, and what its search has decided not: all jobs are listed."""
    experiment, _ = scene.search(job="9")
    (experiment.path / "config.json").write_bytes(b"torn")
    (job,) = _listed(scene, _row("9_[1-2]", folder=str(experiment.jobs)))
    assert (job.experiment_id, job.to_dict()["trial_ids"]) == (experiment.id, [])


def test_one_look_at_the_queue_and_none_at_the_limits(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiers of partitions are asked for only where jobs wait in several."""
    asked: list[str] = []
    limits = Queue.limits

    def counted(queue: Queue) -> Any:
        asked.append("limits")
        return limits(queue)

    monkeypatch.setattr(Queue, "limits", counted)
    _listed(scene, _row("1"), _row("2"), _row("3", "RUNNING", partitions=("low",)))
    assert (scene.queue.listings, asked) == (1, [])
    _listed(scene, _row("1"), _row("2", partitions=("low",)))
    assert (scene.queue.listings, asked) == (2, ["limits"])


def _node(name: str, state: str = "IDLE", **more: Any) -> NodeInfo:
    return NodeInfo(name=name, state=state, **{"partitions": ("gpu",), "cpus": 8, **more})


def test_a_pool_counts_what_jobs_could_have_now() -> None:
    """GPUs where there are any; what is free on drained nodes is not free; queues by partition."""
    gpus: dict[str, Any] = {"gpus": 4, "gpu_types": ("a100",)}
    nodes = [
        _node("n1", "MIXED", **gpus, gpus_used=3),
        _node("n2", "IDLE+DRAIN", **gpus, reason="bad disk"),
        _node("c1", partitions=("gpu", "cpu"), cpus_used=3),
    ]
    limits = ClusterLimits(
        partitions={
            "cpu": PartitionLimits("cpu", up=False, allow_accounts=("bio",), nodes=("c1",)),
            "gpu": PartitionLimits("gpu", default=True, gpus_per_node=4, gpu_types=("a100",)),
        }
    )
    rows = [
        _row("1", "RUNNING", partitions=("gpu",)),
        _row("2_[0-1]", partitions=("gpu", "cpu"), gpus=2),
    ]
    gpu, cpu = pools(limits, nodes, rows)
    assert (gpu.name, gpu.slot_type, gpu.slots_free, gpu.slots_total) == ("gpu", "cuda", 1, 8)
    assert (gpu.nodes_available, gpu.nodes_total) == (2, 3)
    assert (gpu.jobs_running, gpu.jobs_queued, gpu.slots_queued) == (1, 2, 4)
    assert (cpu.slot_type, cpu.slots_free, cpu.slots_total, cpu.up) == ("cpu", 5, 8, False)
    assert (cpu.jobs_running, cpu.jobs_queued, cpu.allow_accounts) == (0, 2, ("bio",))
    unseen: tuple[list[NodeInfo] | None, ...] = (None, [])  # a failed call, PrivateData=nodes
    for seen in unseen:
        hidden = pools(limits, seen, [])[1]
        assert (hidden.slots_free, hidden.slots_total, hidden.nodes_total) == (None, None, None)


def test_slots_of_a_node_by_what_uses_them() -> None:
    """With the indices of GPUs where they are known, and the node's jobs beside those in use."""
    nodes = [
        _node("n1", "MIXED", gpus=4, gpus_used=2, gpus_in_use=(0, 3), gpu_types=("a100",)),
        _node("n2", "DOWN", gpus=2),
        _node("n3", "MIXED", gpus=4, gpus_used=1),
        _node("c1", "MIXED", cpus_used=3),
    ]
    rows = [_row("1", "RUNNING", nodes=("n1", "c1")), _row("2", nodes=())]
    found = [(s.agent, s.state, s.count, s.slot_ids, s.jobs) for s in slots_of(nodes, rows)]
    assert found == [
        ("n1", "USED", 2, (0, 3), ("1",)),
        ("n1", "FREE", 2, (1, 2), ()),
        ("n2", "UNAVAILABLE", 2, (0, 1), ()),
        ("n3", "USED", 1, (), ()),
        ("n3", "FREE", 3, (), ()),
        ("c1", "USED", 3, (), ("1",)),
        ("c1", "FREE", 5, (), ()),
    ]


def test_a_job_is_found_by_any_of_its_names(scene: Scene) -> None:
    """An array, an element, a range, an experiment; of two meanings the experiment wins."""
    scene.experiment(trials=4, job="90")
    folder = str(scene.root / "experiments" / "1" / "jobs")
    scene.queue.rows = [
        _row("90_0", "RUNNING", folder=folder),
        _row("90_[1-3]", folder=folder, reason="Priority"),
        _row("7"),
    ]
    found = scene.client.find_jobs
    assert [job.id for job in found("90")] == ["90_0", "90_[1-3]"]
    assert [job.id for job in found(1)] == ["90_0", "90_[1-3]"]
    assert [(job.id, job.slots_needed, job.trial_ids) for job in found("90_2")] == [
        ("90_2", 2, [3])
    ]
    assert [job.id for job in found("90_[0,2-3]")] == ["90_0", "90_[2-3]"]
    assert scene.client.job("90").id == "90_[1-3]"
    assert scene.client.job("90_0").position == 0
    for word in ("last", "test"):
        assert [job.id for job in found(word)] == ["90_0", "90_[1-3]"]
        assert scene.client.explain_job(word).job_id == "90_[1-3]"
    assert scene.client.explain_trial("last", 2).job_id == "90_[1-3]"
    with pytest.raises(ValueError, match="neither a job"):
        found("90-3")
    with pytest.raises(NotFound, match="no experiment is called 'digits'"):
        found("digits")
    with pytest.raises(NotFound, match="no job 90_4 is in the queue"):
        found("90_4")
    scene.queue.rows.append(_row("1", reason="JobHeldUser"))
    assert [job.id for job in found("1")] == ["90_0", "90_[1-3]"]
    both = ["1 is an experiment and a job: the experiment is meant"]
    assert [text.partition(";")[0] for text in scene.warnings] == both
    assert scene.client.explain_job(1).job_id == "90_[1-3]"
    (job,) = found("1", kind="job")
    assert job.explain().job_id == job.id == "1"
    assert [job.id for job in found(1, kind="experiment")] == ["90_0", "90_[1-3]"]
    assert len(scene.warnings) == 2, "nothing is ambiguous where a kind is given"
    with pytest.raises(NotFound, match="no experiment 7"):
        found(7, kind="experiment")
    scene.queue.remembered["8"] = JobInfo(ref="8", state="FAILED", exit_code=3, folder=folder)
    with pytest.raises(NotFound, match=r"job 8 of experiment 1 .* ended FAILED, exit code 3"):
        found("8")


def test_the_number_of_a_finished_experiment_is_not_an_old_job(scene: Scene) -> None:
    """Slurm remembers a job of another user with this number, which has nothing to do with it."""
    scene.experiment(job=None)
    scene.queue.remembered["1"] = JobInfo(ref="1", state="FAILED", exit_code=3)
    for ask in (scene.client.find_jobs, scene.client.explain_job):
        with pytest.raises(NotFound, match="experiment 1 has no job in the queue; `detslurm"):
            ask("1")
        with pytest.raises(NotFound, match="job 1 is not in the queue any more: it ended FAILED"):
            ask("1", kind="job")
    scene.queue.rows = [_row("1")]
    assert [job.id for job in scene.client.find_jobs("1")] == ["1"]
    assert scene.warnings == ["experiment 1 has no job in the queue: this is Slurm's job 1"]
    with pytest.raises(NotFound, match="experiment 1 has no job in the queue"):
        scene.client.find_jobs("1", kind="experiment")


def test_unmanaged_jobs_are_known_by_their_claims(scene: Scene) -> None:
    """Claims as they are, and as 0.1.0 made them; a job that goes on with another's trials."""
    scene.experiment()
    folder = claims_folder(scene.store)
    ensure_directory(folder)
    names = {
        "slurm-20-batch-0a1b2c3d-0": 1,
        "slurm-20-batch-0a1b2c3d-1": 5,
        "my-2-site-21-0-0": 6,
        "slurm-22-3-12345678-0": 7,
    }
    for name, number in names.items():
        put_record(folder / f"{name}.json", {"experiment": number, "elements": []})
    inherit_claims(scene.store, "slurm", "30", "20")
    ids = ("20", "21", "22", "23", "30")
    jobs = _listed(scene, *(_row(number, "RUNNING") for number in ids))
    assert [job.experiment_id for job in jobs] == [5, 6, 7, None, 5]


def test_a_warning_names_the_line_of_the_caller(scene: Scene) -> None:
    """Without `warn` of its own, a `Client` warns where the user's code calls it."""
    scene.experiment(1, job="7")
    scene.queue.down = True
    with pytest.warns(UserWarning, match="slurm") as caught:
        Client(scene.root, connect=lambda name: scene.queue).experiment(1)
    assert {one.filename for one in caught} == {__file__}
