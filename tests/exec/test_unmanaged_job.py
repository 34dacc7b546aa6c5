"""Why a job that its user submitted is asked to stop, and what that means for its end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from detslurm._base.flag import PreemptFlag
from detslurm.exec import unmanaged_claims, unmanaged_job
from detslurm.exec.outcome import Cause
from detslurm.exec.unmanaged_claims import JobStep
from detslurm.exec.unmanaged_job import UnmanagedJob, _cause, _rank, join
from detslurm.slurm import Allocation, JobInfo, user_script
from detslurm.store import Store, StoreError, fold_facts
from detslurm.store.records import Lost
from detslurm.store.run_records import ResumeRecord, StartRecord
from tests.sdk.scenes import Scene


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        (None, Cause.ENDING),
        (JobInfo("7", "CANCELLED"), Cause.CANCEL),
        (JobInfo("7", "TIMEOUT"), Cause.TIME_LIMIT),
        (JobInfo("7", "RUNNING", time_left=60), Cause.TIME_LIMIT),
        (JobInfo("7", "RUNNING", time_left=6000), Cause.PREEMPTION),
        (JobInfo("7", "RUNNING"), Cause.PREEMPTION),
    ],
)
def test_the_cause_is_what_slurm_says_and_unknown_where_it_says_nothing(
    job: JobInfo | None, cause: Cause
) -> None:
    """A silent controller's job may as well be cancelled."""
    assert _cause(job) is cause


@pytest.mark.parametrize(
    ("exit_code", "acknowledged", "gained", "state", "preempted", "outcome"),
    [
        (143, False, 0, "RUNNING", False, "error"),  # srun has ended it, for another node's failure
        (1, True, 0, "RUNNING", False, "error"),  # a peer was gone, when all were to save
        (143, False, 0, "RUNNING", True, "preempted"),
        (1, True, 0, "RUNNING", True, "preempted"),
        (143, False, 0, "COMPLETING", False, "preempted"),  # without a grace time
        (1, True, 5, "RUNNING", False, "preempted"),  # by `scancel --signal`
        (143, False, 5, "RUNNING", False, "preempted"),
        (0, True, 0, "RUNNING", False, "preempted"),
    ],
)
def test_the_failure_of_another_node_is_no_preemption(
    exit_code: int,
    acknowledged: bool,
    gained: int,
    state: str,
    preempted: bool,
    outcome: str,
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """srun sends its signal too: a job requeued for that would fail and start again without end."""
    requeued: list[Any] = []
    info = JobInfo("7", state, time_left=6000)
    monkeypatch.setattr(unmanaged_job, "_evidence", lambda ref: info)
    monkeypatch.setattr(unmanaged_job, "is_preempted", lambda ref: preempted)
    monkeypatch.setattr(UnmanagedJob, "_requeue", lambda self, action: requeued.append(action))
    resume = {"uuid": "a", "steps": 10}
    trial = scene.run(scene.experiment(), losses=[1.0] * gained, checkpoint="b", resume=resume)
    start = StartRecord(run=1, resume=ResumeRecord("a", 10))
    step = JobStep(Allocation(cluster="slurm", job_id="7", nodes=("n1",)), "0", ["train.py"])
    job = UnmanagedJob(trial, start, step, flag := PreemptFlag.create())
    job.is_chief = True
    flag.request_preemption()
    if acknowledged:
        flag.acknowledge()
    job.finish(exit_code)
    end = trial.end(1)
    assert end is not None
    assert end.outcome == outcome
    again = outcome == "preempted" and state == "RUNNING"
    assert [action.value for action in requeued] == (
        ["requeue"] if again else ["stop"] if state == "RUNNING" else []
    )


def test_a_rank_of_horovodrun_is_not_the_batch_script_itself() -> None:
    """It has the environment of that one, in which SLURM_PROCID is 0."""
    assert _rank({"SLURM_PROCID": "0", "HOROVOD_RANK": "1"}) == 1
    assert _rank({"SLURM_PROCID": "0"}) == 0


def test_nobody_waits_for_a_run_that_the_first_process_could_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its writes failed: the others can open the store, and would look for the run in it."""

    def full(*_: Any) -> None:
        raise StoreError("no space left")

    monkeypatch.setattr(unmanaged_claims, "_make", full)
    monkeypatch.setattr(unmanaged_job, "_TIMEOUT", 0.5)
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    job = str(os.getpid())  # what is announced is seen by all tests on this machine
    for name, value in {"JOB_ID": job, "STEP_ID": "0", "JOB_NODELIST": "n1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(RuntimeError, match="opened no run"):  # it may still come
        join(["train.py"])
    monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(StoreError, match="no space left"):
        join(["train.py"])
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setattr(unmanaged_job, "_TIMEOUT", 300.0)
    with pytest.raises(StoreError, match="the first process of this step could not use it"):
        join(["train.py"])


def test_a_lost_trial_is_found_before_its_next_run_is_claimed(scene: Scene) -> None:
    """As after a requeue by hand: what a lost trial claims may be deleted."""
    made = scene.experiment()
    trial = scene.run(made, checkpoint="a")
    made.append(Lost(trials=(trial.id,)))
    step = JobStep(Allocation(cluster="slurm", job_id="7", nodes=("n1",)), "0", ["train.py"])
    unmanaged_job._start_record(trial, step, ["n1"], None)
    assert not fold_facts(made).lost


def test_ranks_do_not_join_a_run_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script starts its ranks again in the same job: the run before, whose chief was killed or
    left in good order, would have them begin from another checkpoint than the next chief."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("SLURM_PROCID", "1")
    for name, value in {"JOB_ID": "7", "STEP_ID": "0", "JOB_NODELIST": "n1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    allocation = Allocation(cluster="slurm", job_id="7", nodes=("n1",))
    monkeypatch.setattr(user_script, "keep", lambda *_: None)
    step = JobStep(allocation, "0", ["train.py"])
    store = Store.open(tmp_path / "store")

    def joined(patience: float = 0.1) -> int:
        monkeypatch.setattr(unmanaged_job, "_TIMEOUT", patience)
        found = join(["train.py"])
        assert found is not None
        found.flag.close()
        return int(found._start.run)

    child = os.fork()
    if child == 0:
        unmanaged_job._open(store, step, "slurm", {}, launcher=False)
        os._exit(1)
    os.waitpid(child, 0)
    with pytest.raises(RuntimeError, match="opened no run"):
        joined()
    chief = unmanaged_job._open(store, step, "slurm", {}, launcher=False)
    chief.flag.close()
    assert joined(patience=120) == 2
    chief._trial.write_end(2, {"outcome": "preempted", "reason": "", "exit_code": 0, "time": 1.0})
    with pytest.raises(RuntimeError, match="opened no run"):
        joined()


def test_a_second_training_in_one_process_is_warned_of(tmp_path: Path) -> None:
    """A loop over folds: what the second reports at the steps of the first takes its place."""
    code = """
        import detslurm as det

        for fold in (1, 2):
            with det.core.init() as core:
                core.train.report_training_metrics(1, {"loss": 1.0})
    """
    job = {"JOB_ID": "7", "STEP_ID": "0", "JOB_NODELIST": "n1", "PROCID": "0"}
    env = {f"SLURM_{name}": value for name, value in job.items()}
    env |= {"DETSLURM_ROOT": str(tmp_path / "store"), "PATH": "/usr/bin:/bin"}
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stderr.count("trial 1 has ended, and this process records in it once more") == 1
