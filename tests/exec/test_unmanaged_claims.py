"""Which trial a job that detslurm did not submit works for."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from detslurm._base.process import Identity, node, started
from detslurm.exec import unmanaged_claims
from detslurm.slurm import Allocation, user_script
from detslurm.slurm.allocation import step_of
from detslurm.store import Store, StoreError, TrialDir
from detslurm.store.unmanaged import claims_folder, inherit_claims
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

    def find(index: int) -> None:
        found[index] = claim(store, step(index, elements))

    threads = [threading.Thread(target=find, args=(index,)) for index in elements]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[index] for index in elements]


def claim(store: Store, step: unmanaged_claims.JobStep) -> TrialDir:
    """The trial that the first process of a step goes on with."""
    return next(unmanaged_claims.open_trials(store, step, "c", make=True))[0]


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
    folder = claims_folder(store)
    folder.mkdir(parents=True)
    (folder / f"c-100-batch-{step(0, range(6)).claim}-0.making").mkdir()
    trials = claims(store, range(6))
    assert {trial.experiment_id for trial in trials} == {1}
    assert experiments(store) == 1


def found(store: Store, step: unmanaged_claims.JobStep) -> list[int]:
    """The trials in which the other ranks of a step look for its run."""
    trials = unmanaged_claims.open_trials(store, step, "c", make=False)
    return [trial.id for trial, _ in trials]


@pytest.mark.parametrize("option", ["--local_rank={}", "--local-rank {}", "--node_rank {}"])
def test_ranks_find_their_run_though_each_is_given_its_number(store: Store, option: str) -> None:
    """DeepSpeed's launcher appends --local_rank=N to the script's arguments."""

    def rank(number: int, epochs: str = "5") -> unmanaged_claims.JobStep:
        allocation = Allocation(cluster="slurm", job_id="7", nodes=("n1",))
        argv = ["train.py", *option.format(number).split(), "--epochs", epochs]
        return unmanaged_claims.JobStep(allocation, "batch", argv)

    claimed = claim(store, rank(0))
    assert found(store, rank(3)) == [claimed.id]
    assert found(store, rank(3, epochs="6")) == []


@pytest.mark.parametrize(
    ("ends", "restart", "again"),
    [
        (["completed"], 1, False),
        (["preempted", "completed"], 2, False),
        (["preempted", "completed"], 3, False),  # requeued by hand
        (["error"], 1, True),
        (["preempted", "error"], 2, False),  # by Slurm alone, after a preemption
        (["preempted", "error"], 3, True),
    ],
)
def test_what_is_finished_is_not_begun_again(
    store: Store, ends: list[str], restart: int, again: bool
) -> None:
    """Only failed work is, and only where its user asks for it."""
    trials = {worked(store, start(0, "a", n), end).id for n, end in enumerate(ends)}
    assert trials == {1}
    if again:
        assert claim(store, start(0, "a", restart)).id == 2
        return
    for make in (True, False):
        with pytest.raises(unmanaged_claims.SpuriousRequeue, match="trial 1 is over"):
            next(unmanaged_claims.open_trials(store, start(0, "a", restart), "c", make=make))


@pytest.mark.parametrize(
    ("said", "step"),
    [("0", "0"), ("12", "12"), ("-5", None), ("4294967291", None), ("4294967280", None)],
)
def test_a_batch_script_is_no_step(said: str, step: str | None) -> None:
    """Since 26.05 it has a step number, too: one of Slurm's reserved ones."""
    assert step_of({"SLURM_STEP_ID": said}) == step
    assert step_of({}) is None


def start(
    number: int, command: str, restart: int = 0, *, job: str = "7"
) -> unmanaged_claims.JobStep:
    """A step of a job that packs several commands."""
    allocation = Allocation(cluster="slurm", job_id=job, nodes=("n1",), restart_count=restart)
    return unmanaged_claims.JobStep(allocation, str(number), ["train.py", command])


def test_ranks_of_an_element_may_have_arguments_of_their_own(store: Store) -> None:
    """They look for the run of their step; another program of that step is none of theirs."""
    trial = worked(store, batch("train.py --rank 0", 0, range(2)))
    assert found(store, batch("train.py --rank 1", 0, range(2))) == [trial.id]
    assert found(store, batch("test.py --rank 1", 0, range(2))) == []


def worked(store: Store, step: unmanaged_claims.JobStep, end: str | None = None) -> TrialDir:
    """The trial of a step, with a run of it that has ended so; without `end` its node died."""
    trial, runs = next(unmanaged_claims.open_trials(store, step, "c", make=True))
    job = {**step.allocation.record(), "step": step.name}
    run = trial.open_run({"job": job, "command": step.command}, after=len(runs)).run
    assert trial.id in found(store, step), "its other ranks are elsewhere"
    if end is not None:
        trial.write_end(run, {"outcome": end, "reason": "", "exit_code": 0, "time": 1.0})
    return trial


def test_a_command_goes_on_though_it_is_another_step_now(store: Store) -> None:
    """`srun ... &` in a loop: which comes first is chance, and what is done may be left out."""
    a, b = worked(store, start(0, "a"), "preempted"), worked(store, start(1, "b"))
    assert worked(store, start(0, "b", 1), "time_limit").id == b.id
    assert worked(store, start(1, "a", 1)).id == a.id
    assert worked(store, start(2, "b", 2), "preempted").id == b.id
    assert worked(store, start(0, "a", 2), "preempted").id == a.id
    assert worked(store, start(1, "c", 2), "preempted").id not in (a.id, b.id)
    inherit_claims(store, "c", "8", "7")  # as `activate` does
    assert worked(store, start(5, "a", job="8")).id == a.id
    assert experiments(store) == 3


def test_no_two_steps_of_one_start_share_a_trial(store: Store) -> None:
    """Steps with the same command, of which the first start has come to one alone."""
    first = worked(store, start(0, "a"), "preempted")
    taken = worked(store, start(1, "a", 1))
    new = worked(store, start(0, "a", 1))
    assert [taken.id, new.id].count(first.id) == 1
    assert worked(store, start(1, "a", 1)).id == taken.id  # tries again, in the same step
    assert experiments(store) == 2


@pytest.mark.parametrize("end", ["completed", "canceled"])
def test_a_requeue_is_for_what_was_cut_short(store: Store, end: str) -> None:
    """A job of several trainings, one after the other, whichever step each is now."""
    done, cut = worked(store, start(0, "a"), end), worked(store, start(1, "b"), "preempted")
    for number in (0, 3):
        with pytest.raises(unmanaged_claims.SpuriousRequeue, match=f"trial {done.id} is over"):
            claim(store, start(number, "a", 1))
    assert worked(store, start(1, "b", 1), "completed").id == cut.id
    worked(store, start(2, "c", 1), "completed")  # the first start did not come to it
    assert experiments(store) == 3


def test_an_element_goes_on_by_its_command(store: Store) -> None:
    """The same in an array, each for itself: the other one has come no further than its first."""
    both = range(2)
    worked(store, batch("train.py --fold 0", 0, both), "completed")
    cut = worked(store, batch("train.py --fold 1", 0, both))
    tested = worked(store, batch("test.py", 0, both), "preempted")
    other = worked(store, batch("train.py --fold 0", 1, both), "preempted")
    with pytest.raises(unmanaged_claims.SpuriousRequeue):
        claim(store, batch("train.py --fold 0", 0, both, 1))
    assert worked(store, batch("train.py --fold 1", 0, both, 1), "completed").id == cut.id
    assert worked(store, batch("test.py", 0, both, 1), "completed").id == tested.id
    assert worked(store, batch("train.py --fold 0", 1, both, 1), "completed").id == other.id
    worked(store, batch("train.py --fold 1", 1, both, 1), "completed")
    assert experiments(store) == 3


def test_steps_with_one_command_find_their_own_work(store: Store) -> None:
    """`SEED=1 srun train.py & SEED=2 srun train.py &`: none goes on with the other's weights."""
    first, second = (worked(store, start(number, "a"), "preempted") for number in (0, 1))
    assert worked(store, start(1, "a", 1)).id == second.id
    assert worked(store, start(0, "a", 1)).id == first.id


def test_processes_at_once_in_a_batch_script_end_no_run_of_each_other(store: Store) -> None:
    """`SEED=1 python train.py & SEED=2 python train.py &`; after a crash the same run goes on."""
    at = start(0, "a")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    chief = Identity(node(), child, started(child) or "")
    trial = claim(store, at)
    job = {**at.allocation.record(), "step": at.name}
    trial.open_run({"job": job, "command": at.command, "chief": str(chief)})
    assert claim(store, at).id != trial.id
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert claim(store, at).id == trial.id


def test_a_command_that_stands_again_in_the_script_is_not_left_out(store: Store) -> None:
    """`for seed in 1 2 3; do SEED=$seed srun train.py; done`, cut short in the second."""
    done, cut = worked(store, start(0, "a"), "completed"), worked(store, start(1, "a"), "preempted")
    assert worked(store, start(0, "a", 1), "completed").id == cut.id
    for number in (1, 2):
        assert worked(store, start(number, "a", 1), "completed").id not in (done.id, cut.id)
    with pytest.raises(unmanaged_claims.SpuriousRequeue):
        claim(store, start(0, "a", 2))


def of_0_1_0(store: Store, step: unmanaged_claims.JobStep, *, hashed: bool) -> TrialDir:
    """The work of a step as 0.1.0 has recorded it."""
    trial = claim(store, step)
    trial.open_run({"job": step.allocation.record(), "program": step.program})
    (path,) = claims_folder(store).glob(f"*-batch-{step.claim}-0.json")
    command = f"-{step.command}" if hashed else ""
    path.rename(path.with_name(f"c-{step.job}-{step.name}{command}-0.json"))
    path.with_suffix(".making").rmdir()
    return trial


def test_work_that_0_1_0_began_goes_on(store: Store) -> None:
    """Its claims had the number of the step, and in arrays none of the command."""
    trials = [of_0_1_0(store, start(number, "a"), hashed=True) for number in (2, 3)]
    again = [worked(store, start(number, "a", 1), "preempted") for number in (0, 1)]
    assert [trial.id for trial in again] == [trial.id for trial in trials]
    both = range(2)
    trained = of_0_1_0(store, batch("train.py", 1, both), hashed=False)
    assert worked(store, batch("test.py", 1, both, 1)).id != trained.id
    assert worked(store, batch("train.py", 1, both, 1)).id == trained.id
    assert experiments(store) == 4


def test_what_has_failed_is_tried_again(store: Store) -> None:
    """And one command twice in a script is two trainings, in every start."""
    failed = worked(store, start(0, "a"), "error")
    worked(store, start(1, "b"), "preempted")
    again = worked(store, start(0, "a", 1), "completed")
    assert again.id != failed.id
    assert worked(store, start(2, "a", 1), "completed").id not in (failed.id, again.id)


def test_a_deleted_experiment_is_in_nobodys_way(store: Store) -> None:
    """Of the job's others only those that are there count."""
    gone = worked(store, start(0, "a"), "completed")
    cut = worked(store, start(1, "b"), "preempted")
    shutil.rmtree(gone.experiment_path)
    assert worked(store, start(4, "b", 1)).id == cut.id
    shutil.rmtree(cut.experiment_path)
    assert worked(store, start(4, "b", 2)).id not in (gone.id, cut.id)


def test_a_claim_without_a_run_is_gone_on_with(store: Store) -> None:
    """The first start died in between. A later one that left it aside would be left aside itself,
    with all that it has trained, when the step has its first number again."""
    claimed = claim(store, start(0, "a"))
    worked(store, start(1, "b"), "preempted")
    assert worked(store, start(1, "a", 1), "preempted").id == claimed.id
    assert worked(store, start(0, "a", 2)).id == claimed.id


def test_a_claim_that_can_not_be_read_stops_no_other_step(store: Store) -> None:
    """Its own step is told: the script trains on, unrecorded."""
    torn, cut = worked(store, start(0, "a")), worked(store, start(1, "b"), "preempted")
    (path,) = claims_folder(store).glob(f"c-7-batch-{start(0, 'a').claim}-*.json")
    path.chmod(0o600)
    path.write_text("{")
    assert worked(store, start(4, "b", 1)).id == cut.id != torn.id
    with pytest.raises(StoreError):
        claim(store, start(0, "a", 1))


def batch(
    program: str, index: int, elements: range, restart: int = 0, job: str = "100"
) -> unmanaged_claims.JobStep:
    """A program that an array's script starts without srun."""
    allocation = Allocation(
        cluster="slurm",
        job_id=f"{job}{index}",
        nodes=("n1",),
        restart_count=restart,
        array_job_id=job,
        array_task_id=index,
    )
    return unmanaged_claims.JobStep(allocation, "batch", program.split(), elements)


def test_an_array_of_fewer_elements_is_in_nobodys_way(store: Store) -> None:
    """`activate` submits those that were lost: the others find what these have made meanwhile."""
    every, lost = range(3), range(1)
    worked(store, batch("train.py", 0, every))
    worked(store, batch("train.py", 1, every), "completed")
    inherit_claims(store, "c", "200", "100")
    worked(store, batch("train.py", 0, lost, job="200"), "completed")
    first = worked(store, batch("test.py", 0, lost, job="200"), "completed")
    second = worked(store, batch("test.py", 1, every), "completed")
    assert second.experiment_id != first.experiment_id


def test_an_element_takes_nothing_that_is_there_for_the_others(store: Store) -> None:
    """One has come to the third program: its requeued neighbour does not begin anew in there."""
    both = range(2)
    for program in ("prepare.py", "train.py", "test.py"):
        worked(store, batch(program, 0, both), "completed")
    worked(store, batch("prepare.py", 1, both), "completed")
    cut = worked(store, batch("train.py", 1, both), "preempted")
    with pytest.raises(unmanaged_claims.SpuriousRequeue):
        claim(store, batch("prepare.py", 1, both, 1))
    assert worked(store, batch("train.py", 1, both, 1), "completed").id == cut.id
    assert worked(store, batch("test.py", 1, both, 1), "completed").experiment_id == 3
