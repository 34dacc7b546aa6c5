"""Which trial a job that detslurm did not submit works for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from detslurm.exec import unmanaged_claims
from detslurm.slurm import Allocation, user_script
from detslurm.slurm.allocation import step_of
from detslurm.store import Store, TrialDir
from detslurm.store.job_claims import claims_folder
from detslurm.store.views import RunView
from tests.cluster.waiting import wait_for


def step(index: int, elements: range) -> unmanaged_claims.JobStep:
    allocation = Allocation(
        cluster="slurm",
        job_id=str(100 + index),
        nodes=("n1",),
        array_job_id="100",
        array_task_id=index,
    )
    return unmanaged_claims.JobStep(allocation, "0", ["train.py"], elements)


def claims(
    store: Store, elements: range, found: dict[int, TrialDir] | None = None
) -> list[TrialDir]:
    """What the elements of an array find that start in the same moment."""
    found = {} if found is None else found

    def claim(index: int) -> None:
        found[index] = unmanaged_claims.claim(store, step(index, elements), "c")

    threads = [threading.Thread(target=claim, args=(index,)) for index in elements]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in elements]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(user_script, "keep", lambda *_: None)
    return Store.open(tmp_path / "store")


def experiments(store: Store) -> int:
    return len(list((store.path / "experiments").iterdir()))


def test_an_array_is_one_experiment_however_slow_the_controller(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No element waits for what another one asks of it."""
    found: dict[int, TrialDir] = {}

    def keep(*_: Any) -> dict[str, Any]:
        wait_for(lambda: len(found) == 7, 60, "all elements but the one that asks")
        return {"options": [], "arguments": [], "throttle": None}

    monkeypatch.setattr(user_script, "keep", keep)
    trials = claims(store, range(8), found)
    assert experiments(store) == 1
    assert len({trial.id for trial in trials}) == 8
    assert {trial.experiment_id for trial in trials} == {1}


def test_one_takes_over_from_a_maker_that_has_died(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one about to make the experiment left a mark: one other makes it, not everybody."""
    wait, waited = unmanaged_claims._awaited, set()

    def awaited(store: Store, path: Path) -> Any:
        if (thread := threading.current_thread()) in waited:
            return wait(store, path)
        return waited.add(thread)  # has waited long enough for the first maker

    monkeypatch.setattr(unmanaged_claims, "_awaited", awaited)
    key = step(0, range(6)).key("c", "100")
    folder = claims_folder(store)
    folder.mkdir(parents=True)
    (folder / f"{key}-0.making").mkdir()
    trials = claims(store, range(6))
    assert {trial.experiment_id for trial in trials} == {1}
    assert experiments(store) == 1


@pytest.mark.parametrize("option", ["--local_rank={}", "--local-rank {}", "--node_rank {}"])
def test_ranks_find_their_run_though_each_is_given_its_number(store: Store, option: str) -> None:
    """DeepSpeed's launcher appends --local_rank=N to the script's arguments."""

    def rank(number: int, epochs: str = "5") -> unmanaged_claims.JobStep:
        allocation = Allocation(cluster="slurm", job_id="7", nodes=("n1",))
        argv = ["train.py", *option.format(number).split(), "--epochs", epochs]
        return unmanaged_claims.JobStep(allocation, "batch", argv)

    claimed = unmanaged_claims.claim(store, rank(0), "c")
    found = unmanaged_claims.find(store, rank(3), "c")
    assert found is not None
    assert found.id == claimed.id
    assert unmanaged_claims.find(store, rank(3, epochs="6"), "c") is None


def run(outcome: str, restart: int, ref: str = "7") -> RunView:
    return RunView(number=restart + 1, outcome=outcome, job={"ref": ref, "restart_count": restart})


@pytest.mark.parametrize(
    ("runs", "restart", "extra"),
    [
        ([run("preempted", 0), run("completed", 1)], 2, True),
        ([run("preempted", 0), run("error", 1)], 2, True),
        ([run("preempted", 0), run("completed", 1)], 3, False),  # requeued by hand
        ([run("preempted", 0), run("completed", 1)], 1, False),  # the script begins another one
        ([run("completed", 0)], 1, False),
        ([run("preempted", 0, "6"), run("completed", 1)], 2, False),
        ([run("preempted", 0), run("completed", 1, "6")], 2, False),
        ([], 1, False),
    ],
)
def test_a_start_that_slurm_alone_has_asked_for(
    runs: list[RunView], restart: int, extra: bool
) -> None:
    """The one after the end of a job that was preempted: whoever wants more asks once more."""
    allocation = Allocation(cluster="slurm", job_id="7", nodes=("n1",), restart_count=restart)
    assert unmanaged_claims.is_spurious_requeue(runs, allocation) == extra


@pytest.mark.parametrize(
    ("said", "step"),
    [("0", "0"), ("12", "12"), ("-5", None), ("4294967291", None), ("4294967280", None)],
)
def test_a_batch_script_is_no_step(said: str, step: str | None) -> None:
    """Since 26.05 it has a step number, too: one of Slurm's reserved ones."""
    assert step_of({"SLURM_STEP_ID": said}) == step
    assert step_of({}) is None
