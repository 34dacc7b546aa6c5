"""Scripts for submitit run on detslurm's executor: their functions are experiments."""

from __future__ import annotations

import ast
import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from detslurm.sdk import Executor
from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.test_main_job import make_room

HEAD = "from detslurm.sdk import submitit\n"
WITH_SUBMITIT = "import submitit\n"

SCRIPT = """
import json, sys, warnings

warnings.simplefilter("ignore")  # the store is on one disk here


def multiply(a, b):
    print("multiplying", a, b)
    return a * b


def fails():
    raise ValueError("this one fails")


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="log_%j", cluster=sys.argv[1])
    executor.update_parameters(timeout_min=5, cpus_per_task=1, name="multiplied")
    if sys.argv[1] == "slurm":
        executor.update_parameters(slurm_partition="main", slurm_array_parallelism=2)
    job = executor.submit(multiply, 6, 7)
    jobs = executor.map_array(multiply, [1, 2, 3], [10, 20, 30])
    with executor.batch():
        batch = [executor.submit(multiply, n, b=2) for n in range(2)]
    failed = executor.submit(fails)
    found = {
        "result": job.result(),
        "results": [job.result() for job in jobs],
        "batch": [job.result() for job in batch],
        "done": job.done(),
        "state": job.state,
        "printed": "multiplying 6 7" in job.stdout(),
        "exception": "this one fails" in str(failed.exception()),
        "failed": failed.state,
        "ids": len({job.job_id for job in [job, *jobs, *batch, failed]}),
        "again": job.submission().result(),
    }
    print(json.dumps(found))
"""

EXPECTED = {
    "result": 42,
    "results": [10, 40, 90],
    "batch": [0, 2],
    "done": True,
    "state": "COMPLETED",
    "printed": True,
    "exception": True,
    "failed": "FAILED",
    "ids": 7,
    "again": 42,
}


@pytest.mark.parametrize("cluster", ["slurm", "local"])
def test_a_script_for_submitit_runs(desk: Desk, cluster: str) -> None:
    """With one import changed; its calls are listed as experiments of one trial or more."""
    script = desk.write("script.py", HEAD + SCRIPT)
    done = desk.user.run("python3", str(script), cluster)
    assert json.loads(done.stdout.splitlines()[-1]) == EXPECTED
    views = [desk.view(number) for number in (1, 2, 3, 4)]
    assert [view.name for view in views] == ["multiplied"] * 4
    assert [view.trial_count for view in views] == [1, 3, 2, 1]
    assert [view.state for view in views] == ["COMPLETED"] * 3 + ["ERROR"]
    assert desk.outcomes(4) == ["error"]  # its code is at fault: it is not tried again


def test_submitit_gives_the_same(desk: Desk) -> None:
    """The script means the same with submitit itself."""
    script = desk.write("script.py", WITH_SUBMITIT + SCRIPT)
    done = desk.user.run("python3", str(script), "local")
    found = json.loads(done.stdout.splitlines()[-1])
    assert {**found, "state": "", "failed": ""} == {**EXPECTED, "state": "", "failed": ""}


COUNTS = """
import sys, time, warnings
from detslurm.sdk import submitit

warnings.simplefilter("ignore")


class Count(submitit.helpers.Checkpointable):
    def __init__(self):
        self.number = 0
        self.starts = []

    def __call__(self, end):
        self.starts.append(self.number)
        while self.number < end:
            time.sleep(0.1)
            self.number += 1
            print("counted", self.number, flush=True)
        return self.starts


class Gives(Count):
    def checkpoint(self, end):
        self.number += 1000
        return submitit.helpers.DelayedSubmission(self, end=1100)


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="log")
    executor.update_parameters(slurm_partition="low", slurm_array_parallelism=4)
    with executor.batch():
        jobs = [executor.submit(Count(), 80), executor.submit(Gives(), 1100)]
    print(jobs[0].job_id, flush=True)
    print([job.result() for job in jobs])
"""


def _has_counted(desk: Desk, index: int) -> bool:
    return "counted 5" in desk.log(1, index)


@pytest.mark.slow
def test_a_preempted_call_goes_on(desk: Desk, site: Cluster) -> None:
    """As its `checkpoint()` says, in the next run of the same trial."""
    script = desk.write("counts.py", COUNTS)
    with desk.user.popen(("python3", str(script))) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is submitted
        for index in (0, 1):
            wait_for(partial(_has_counted, desk, index), PATIENCE, "both to count")
        make_room(desk)
        out, _ = process.communicate(timeout=PATIENCE)
    first, second = ast.literal_eval(out.splitlines()[-1])
    assert first[0] == 0 and len(first) == 2 and 5 <= first[1] < 80
    assert second[0] == 0 and len(second) == 2 and second[1] > 1000
    assert [desk.outcomes(1, index) for index in (0, 1)] == [["preempted", "completed"]] * 2
    assert [c.resources.keys() for c in desk.trial(1).checkpoints] == [
        {"metadata.json", "submission.pkl"}
    ]


def _slow(path: str) -> int:
    with Path(path).open("a") as file:
        file.write("begun\n")
    time.sleep(2)
    return len(Path(path).read_text().splitlines())


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    """On this machine, with a store of its own."""
    monkeypatch.setenv("DETSLURM_ROOT", str(tmp_path / "store"))
    found = Executor(tmp_path / "log", cluster="local")
    found.client.warn = lambda text: None
    return found


def test_a_call_without_a_checkpoint_begins_again(executor: Executor, tmp_path: Path) -> None:
    """When it was interrupted; nothing of the first run counts."""
    begun = tmp_path / "begun"
    job = executor.submit(_slow, str(begun))
    wait_for(begun.exists, PATIENCE, "the call to begin")
    job.experiment.pause()
    wait_for(lambda: job.trial.reload().state == "PAUSED", PATIENCE, "the pause")
    assert not job.done() and job.state == "PENDING"
    job.experiment.activate()
    assert job.result() == 2


def _dies_once(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def test_a_call_that_was_killed_is_retried(executor: Executor, tmp_path: Path) -> None:
    """The machine is at fault, as where memory runs out; the result is that of the second run."""
    job = executor.submit(_dies_once, str(tmp_path / "died"))
    assert job.result() == "survived"
    assert job.trial.reload().row.restarts == 1


def test_a_call_that_never_survives_says_why(executor: Executor, tmp_path: Path) -> None:
    """After its last restart."""
    executor.update_parameters(detslurm_max_restarts=0)
    job = executor.submit(_dies_once, str(tmp_path / "died"))
    assert "without a result" in str(job.exception()) and job.state == "FAILED"


def test_a_canceled_call_has_no_result(executor: Executor, tmp_path: Path) -> None:
    """Who waits for it gets submitit's exception."""
    from submitit.core.utils import UncompletedJobError

    job = executor.submit(_slow, str(tmp_path / "begun"))
    job.cancel()
    assert isinstance(job.exception(), UncompletedJobError)
    with pytest.raises(UncompletedJobError, match="without a result"):
        job.result()
    assert job.state == "CANCELLED"


def test_what_others_can_write_is_not_unpickled(executor: Executor, tmp_path: Path) -> None:
    """A result in a directory that is open to all might be somebody else's."""
    job = executor.submit(_slow, str(tmp_path / "begun"))
    assert job.result() == 1
    place = job.paths.result_pickle
    assert place.stat().st_mode & 0o777 == 0o600
    for folder in (*place.parents,)[:-2]:
        folder.chmod(folder.stat().st_mode | 0o011)
    place.chmod(0o666)
    with pytest.raises(PermissionError, match="others can change"):
        job.result()


def _seen_inside() -> tuple[str, int]:
    """What a job sees of itself through Determined's client."""
    import detslurm as det
    from detslurm.experimental import client

    info = det.get_cluster_info()
    assert info is not None
    trial = client.get_trial(info.trial.trial_id)
    return trial.state, len(client.get_experiment(trial.experiment_id).list_trials())


def test_a_job_finds_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store that it was submitted to, also if that is not the default one."""
    monkeypatch.delenv("DETSLURM_ROOT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    executor = Executor(tmp_path / "log", cluster="local", root=tmp_path / "store")
    executor.client.warn = lambda text: None
    assert executor.submit(_seen_inside).result() == ("RUNNING", 1)
