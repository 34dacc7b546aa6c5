"""Code that crashes, processes that are killed, parameters that make no sense."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.cluster.processes import alive
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import find_process, find_processes
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

# Counts its runs in a file, saves after every step, and crashes in the first two runs.
CRASHES_TWICE = """\
    import os, pathlib, time
    import detslurm as det

    info = det.get_cluster_info()
    folder = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"])
    with det.core.init() as core:
        core.profiler.on(sampling_interval=0.1, samples_per_report=1)
        while info.trial._trial_run_id == 3 and not any(
            "profile" in path.read_text() for path in folder.glob("trials/*/*/run-3.jsonl")
        ):
            time.sleep(0.05)
        step = 0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
        while step < 6:
            step += 1
            core.train.report_training_metrics(step, {"run": info.trial._trial_run_id})
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "step").write_text(str(step))
            if info.trial._trial_run_id < 3 and step % 2 == 0:
                raise RuntimeError(f"crash number {info.trial._trial_run_id}")
"""

# Trains until the file `go` appears beside the store.
WAITS = """\
    import os, pathlib, time
    import detslurm as det

    go = pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "go"
    with det.core.init() as core:
        print("writes to", core.train.get_tensorboard_path())
        print("pid", os.getpid(), flush=True)
        core.train.report_training_metrics(1, {"loss": 1.0})
        while not go.exists():
            time.sleep(0.05)
            if core.preempt.should_preempt():
                raise SystemExit(0)
"""


def let_go(desk: Desk, number: int) -> None:
    (desk.experiment(number).path / "go").touch()


def pid_of_code(desk: Desk, number: int) -> int:
    """The process id of the newest run's code."""
    desk.wait_for_log(number, "pid ")
    return int(desk.log(number).rsplit("pid ", 1)[1].split()[0])


def test_code_that_crashes_twice_finishes_with_two_restarts(desk: Desk) -> None:
    """Each run goes on from the last checkpoint, inside the same allocation, in one log."""
    number = desk.submit(desk.project(CRASHES_TWICE))
    desk.wait_for_state(number, "COMPLETED")
    trial = desk.trial(number)
    assert desk.outcomes(number) == ["restart", "restart", "completed"]
    assert trial.restarts == 2
    assert len({run.job.ref for run in trial.runs}) == 1
    assert {run.job.restart_count for run in trial.runs} == {0}
    rows = [(row.steps, row.metrics["run"]) for row in desk.metrics(number)]
    assert rows == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]
    lines = desk.run("trial", "metrics", str(trial.id), "--csv").stdout.splitlines()
    assert [line.split(",")[1] for line in lines] == ["steps", *"123456"]
    profile = unwrap(desk.run("trial", "profile", str(trial.id), "--json").stdout)
    assert {"cpu_util_simple", "memory_free"} <= {n for row in profile for n in row["metrics"]}
    assert 3 in {row["run"] for row in profile}
    logs = desk.run("trial", "logs", str(trial.id)).stdout
    assert logs.index("crash number 1") < logs.index("crash number 2")


def test_code_that_always_crashes_ends_as_error(desk: Desk) -> None:
    """After max_restarts the trial is ERROR, and describe shows why with the traceback."""
    number = desk.submit(
        desk.project("print('hello')\nraise ValueError('the data is upside down')"),
        "max_restarts=1",
    )
    waited = desk.run("experiment", "wait", str(number), check=False)
    assert waited.returncode == 1
    assert desk.view(number).state == "ERROR"
    assert desk.outcomes(number) == ["restart", "error"]
    error = "ValueError: the data is upside down; the last two runs failed with the same error"
    assert f"Experiment {number} is ERROR: {error}" in waited.stdout
    listed = desk.run("experiment", "list", "--columns", "id,reason", "--csv").stdout
    assert f"\n{number},{error}" in listed.replace('"', "")
    described = desk.run("experiment", "describe", str(number)).stdout
    assert "ValueError: the data is upside down" in described
    assert "train.py" in described


def test_what_can_not_pass_by_itself_is_tried_twice(desk: Desk) -> None:
    """The same error of the code at once, without a step: the trial says so, and who wants more
    restarts all the same gets them."""
    config = desk.project("import nosuch")
    stubborn = desk.submit(config, "max_restarts=2", "restart_repeated_failures=true")
    number = desk.submit(config)
    desk.wait_for_state(number, "ERROR")
    assert desk.outcomes(number) == ["restart", "error"]
    reason = desk.trial(number).end_reason or ""
    assert "No module named 'nosuch'" in reason and "a restart would not help" in reason
    assert "the last two runs failed" in desk.run("experiment", "describe", str(number)).stdout
    desk.wait_for_state(stubborn, "ERROR")
    assert desk.outcomes(stubborn) == ["restart", "restart", "error"]


def test_invalid_hyperparameters_end_the_trial_without_a_restart(desk: Desk) -> None:
    """InvalidHP: exit 0, no restart, said so."""
    script = """\
        import detslurm as det
        with det.core.init() as core:
            raise det.InvalidHP("too many layers")
    """
    number = desk.submit(desk.project(script))
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["invalid_hp"]


@pytest.mark.nightly
def test_hyperparameters_that_a_worker_alone_finds_invalid(desk: Desk) -> None:
    """The chief on the other node, which waits for it in vain, is ended; no restart."""
    script = """\
        import time
        import detslurm as det
        dist = det.core.DistributedContext.from_torch_distributed()
        with det.core.init(distributed=dist) as core:
            dist.allgather(None)
            if dist.rank == 1:
                raise det.InvalidHP("too many layers")
            time.sleep(3600)
    """
    number = desk.submit(
        desk.project(script),
        "entrypoint=python3 -m detslurm.launch.torch_distributed train.py",
        "resources.slots_per_trial=2",
        "slurm.slots_per_node=1",
    )
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["invalid_hp"]
    assert "hyperparameters are invalid: too many layers" in desk.log(number)


def test_the_users_process_killed(desk: Desk) -> None:
    """kill -9 of the training process uses a restart and training goes on; a SIGINT that reaches
    the runner changes nothing."""
    number = desk.submit(desk.project(WAITS))
    pid = pid_of_code(desk, number)
    desk.user.run("scancel", "--signal=INT", "--batch", desk.job(number))
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: desk.outcomes(number) == ["restart", None], PATIENCE, "the second run")
    wait_for(lambda: pid_of_code(desk, number) != pid, PATIENCE, "another process")
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED")
    assert "was killed by SIGKILL" in (desk.trial(number).runs[0].reason or "")


def test_the_runner_killed(desk: Desk, site: Cluster) -> None:
    """kill -9 of the runner ends the job; the store stays readable and activate goes on."""
    number = desk.submit(desk.project(WAITS))
    pid = pid_of_code(desk, number)
    runner = find_process(f"detslurm.exec.runner {desk.experiment(number).path} ")
    os.kill(runner, signal.SIGKILL)
    site.wait_state(desk.job(number), "FAILED")
    shown = unwrap(desk.run("trial", "describe", str(desk.trial(number).id), "--json").stdout)
    (run,) = shown["runs"]
    assert shown["state"] == "ERROR" and run["outcome"] == "lost", "and it does not go on for ever"
    assert shown["ended"] == run["ended"] >= run["started"]
    wait_for(lambda: not alive(pid), PATIENCE, "the code to be gone")
    described = desk.run("experiment", "describe", str(number)).stdout
    assert "ERROR" in described
    desk.run("experiment", "activate", str(number))
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["lost", "completed"]


def test_another_runner_goes_on_with_a_dead_ones_trial(desk: Desk, site: Cluster) -> None:
    """Of a grid whose runner was killed: once it has done its own share, and says so."""
    two = ("searcher.name=grid", "hyperparameters.x={type: int, minval: 0, maxval: 1, count: 2}")
    number = desk.submit(desk.project(WAITS), *two)
    for index in (0, 1):
        wait_for(lambda: "pid " in desk.log(number, index), PATIENCE, "both trials")  # noqa: B023
    runners = find_processes(f"detslurm.exec.runner {desk.experiment(number).path} ")
    first = [
        p for p in runners if b"SLURM_ARRAY_TASK_ID=0\0" in Path(f"/proc/{p}/environ").read_bytes()
    ]
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    site.wait_state(f"{desk.job(number)}_0", "FAILED")
    assert f"`detslurm e activate {number}`" in desk.run("e", "describe", str(number)).stdout
    let_go(desk, number)
    desk.run("experiment", "wait", str(number))
    assert desk.view(number).state == "COMPLETED"
    assert [desk.outcomes(number, index) for index in (0, 1)] == [
        ["lost", "completed"],
        ["completed"],
    ]
    assert desk.trial(number).runs[1].job.ref == f"{desk.view(number).jobs[0].job_id}_1"


# Says what srun says while no controller answers, the first two times.
MUTE = """\
    #!/bin/sh
    echo x >> "$COUNT"
    if [ "$(wc -l < "$COUNT")" -lt 3 ]; then
        echo "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm \
controller (connect failure)" >&2
        exit 1
    fi
    PATH="${PATH#*:}" exec srun "$@"
    """


def test_a_controller_that_does_not_answer_costs_no_restart(desk: Desk) -> None:
    """A step that can't begin because slurmctld is away is tried again, in the same run."""
    shim = desk.write("shim/srun", MUTE)
    shim.chmod(0o755)
    setup = f"export COUNT={shim.parent}/count PATH={shim.parent}:$PATH"
    number = desk.submit(desk.project("print('hello')"), "max_restarts=0", f"slurm.setup=[{setup}]")
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert desk.outcomes(number) == ["completed"]
    assert desk.log(number).count("Slurm does not answer") == 2


def test_a_store_that_can_not_be_used_for_a_while(desk: Desk) -> None:
    """Neither a look at the intents nor the end record of a run is the runner's end."""
    number = desk.submit(desk.project(WAITS))
    pid_of_code(desk, number)
    experiment, job = desk.experiment(number), desk.job(number)
    said = next(experiment.jobs.glob("*.out"))

    def without(folder: Path, act: Callable[[], object]) -> None:
        before = said.read_text()
        folder.chmod(0)
        try:
            act()
            wait_for(
                lambda: "can't be used" in said.read_text()[len(before) :], PATIENCE, "a complaint"
            )
        finally:
            folder.chmod(0o700)

    notify = ("scancel", "--signal=USR2", "--batch", job)
    without(experiment.log.path, lambda: desk.user.run(*notify))
    without(desk.trial_dir(number).path, lambda: let_go(desk, number))
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["completed"]


# Saves when it is asked to; needs nothing else of the store meanwhile.
SAVES = """\
    import os, pathlib, time
    import detslurm as det

    go = pathlib.Path.home() / "save"
    with det.core.init() as core:
        core.train.report_training_metrics(1, {"loss": 1.0})
        print("pid", os.getpid(), flush=True)
        while not go.exists():
            time.sleep(0.05)
        with core.checkpoint.store_path({"steps_completed": 1}) as (path, _):
            (path / "weights").write_text("w")
"""


def test_a_store_whose_parent_is_closed_when_a_checkpoint_is_due(desk: Desk) -> None:
    """The code waits until the directory is open again, and loses neither its run nor its save."""
    number = desk.submit(desk.project(SAVES))
    pid_of_code(desk, number)
    desk.store.path.chmod(0)  # for the user: the tests are root's
    try:
        (desk.user.home / "save").touch()
        desk.wait_for_log(number, "trying again")
    finally:
        desk.store.path.chmod(0o700)
    desk.wait_for_state(number, "COMPLETED")
    assert desk.outcomes(number) == ["completed"]
    [saved] = desk.trial(number).checkpoints
    assert saved.steps == 1


def test_a_job_that_was_declared_dead_and_requeued_by_hand(desk: Desk, site: Cluster) -> None:
    """Its trial is alive again for all commands, and what it comes to is what lists show."""
    number = desk.submit(desk.project(WAITS))
    pid_of_code(desk, number)
    os.kill(find_process(f"detslurm.exec.runner {desk.experiment(number).path} "), signal.SIGKILL)
    site.wait_state(desk.job(number), "FAILED")

    def listed() -> str:
        return str(unwrap(desk.run("experiment", "list", "--json").stdout)[-1]["state"])

    assert listed() == "ERROR"
    site.command("scontrol", "requeue", desk.job(number))
    wait_for(lambda: desk.outcomes(number) == ["lost", None], PATIENCE, "the next run")
    wait_for(lambda: listed() == "ACTIVE", PATIENCE, "the experiment to be alive again")
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED")
    assert listed() == "COMPLETED"


def test_one_of_the_trials_that_share_a_job_killed(desk: Desk) -> None:
    """One that waits never runs, one at work is ended, and the job goes on with the others."""
    config = "hyperparameters: {x: {type: categorical, vals: [1, 2, 3]}}"
    number = desk.submit(
        desk.project(WAITS, config), "searcher.name=grid", "slurm.trials_per_job=3"
    )
    pid_of_code(desk, number)
    for index in (1, 0):
        desk.run("trial", "kill", str(desk.trial_dir(number, index).id))
    wait_for(lambda: desk.outcomes(number, 2) == [None], PATIENCE, "the third trial")
    let_go(desk, number)
    desk.wait_for_state(number, "COMPLETED")
    ends = [desk.outcomes(number, index) for index in range(3)]
    assert ends == [["killed"], [], ["completed"]]
    assert [t.state for t in desk.view(number).trials] == ["CANCELED", "CANCELED", "COMPLETED"]


def test_kill_and_cancel(desk: Desk, site: Cluster) -> None:
    """kill ends the trial at once; cancel lets it leave by itself; both free queue and node."""
    stubborn = WAITS.replace("core.preempt.should_preempt()", "False")
    killed = desk.submit(desk.project(stubborn, name="one"))
    canceled = desk.submit(desk.project(WAITS, name="two"))
    pids = [pid_of_code(desk, killed), pid_of_code(desk, canceled)]
    logs = [desk.log(number) for number in (killed, canceled)]
    temporary = [Path(re.findall(r"writes to (\S+)", log)[0]) for log in logs]
    assert all(map(Path.exists, temporary))
    desk.run("experiment", "kill", str(killed))
    desk.run("experiment", "cancel", str(canceled))
    desk.wait_for_state(killed, "CANCELED")
    desk.wait_for_state(canceled, "CANCELED")
    assert desk.outcomes(canceled) == ["canceled"]
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")
    wait_for(lambda: not any(map(alive, pids)), PATIENCE, "the processes to be gone")
    wait_for(lambda: not any(map(Path.exists, temporary)), PATIENCE, "their files to be gone")


def test_a_plain_scancel_is_the_end(desk: Desk, slurm: Cluster) -> None:
    """In whatever time zone the job lives: nothing is requeued, and the trial was killed."""
    away = Desk(replace(desk.user, env={**desk.user.env, "TZ": "Asia/Tokyo"}))
    number = away.submit(desk.project(WAITS))
    pid_of_code(desk, number)
    desk.user.run("scancel", desk.job(number))
    desk.wait_for_state(number, "CANCELED")
    # Who submitted may have a clock that is minutes ahead, and the job is found all the same.
    code = """if True:
        import sys, time
        from detslurm.slurm import command, history
        asked = history.sacct_command(sys.argv[1:], time.time() + 300)
        print(*(job.state for job in history.parse_sacct(command.run(asked)).values()))
    """
    asked = (sys.executable, "-c", code, desk.job(number))
    known = lambda: desk.user.run(*asked).stdout.strip() == "CANCELLED"  # noqa: E731
    wait_for(known, PATIENCE, "the database to know of its end")
    wait_for(lambda: not slurm.queued(desk.user.name), PATIENCE, "an empty queue")
    assert desk.outcomes(number) == ["killed"]
    assert slurm.job(desk.job(number))["Restarts"] == "0"


def test_a_log_policy_cancels_the_retries(desk: Desk) -> None:
    """A line that matches makes the next failure final."""
    config = """\
        log_policies:
          - {name: bad weights, pattern: "weights .* corrupt", action: cancel_retries}
        """
    number = desk.submit(desk.project("raise SystemExit('the weights file is corrupt')", config))
    desk.wait_for_state(number, "ERROR")
    trial = desk.trial(number)
    assert desk.outcomes(number) == ["error"]
    assert "bad weights" in (trial.end_reason or "")


def test_a_log_policy_excludes_the_node(desk: Desk, site: Cluster) -> None:
    """The next run starts on another node."""
    config = """\
        log_policies:
          - {name: ECC Error, pattern: "uncorrectable ECC error", action: exclude_node}
        """
    script = """\
        import detslurm as det
        if det.get_cluster_info().trial._trial_run_id == 1:
            raise SystemExit("GPU 0: uncorrectable ECC error encountered")
        """
    number = desk.submit(desk.project(script, config))
    desk.wait_for_state(number, "COMPLETED")
    first, second = (run.job.nodes for run in desk.trial(number).runs)
    assert first != second
    assert desk.outcomes(number) == ["restart", "completed"]


# The second node fails as it leaves, the first one saves for longer than Slurm's KillWait.
LEAVES_FIRST = """\
    import os, pathlib, sys, time
    import detslurm as det
    from detslurm._base.flag import PreemptFlag

    flag = PreemptFlag.of_this_node()
    rank = det.get_cluster_info().container_rank
    print("pid", os.getpid(), flush=True)
    while not flag.preempt:
        time.sleep(0.05)
    if rank == 1:
        sys.exit(3)
    time.sleep(9)
    (pathlib.Path(os.environ["DETSLURM_EXPERIMENT_DIR"]) / "saved").touch()
"""


@pytest.mark.strange_site
def test_a_node_that_fails_as_it_leaves_lets_the_others_save(desk: Desk) -> None:
    """Slurm would end the step within its KillWait, which is 5 seconds here."""
    layout = ("resources.slots_per_trial=2", "slurm.slots_per_node=1")
    number = desk.submit(desk.project(LEAVES_FIRST), *layout)
    pids = "[rank=0] || pid", "[rank=1] || pid"
    wait_for(lambda: all(pid in desk.log(number) for pid in pids), PATIENCE, "both nodes")
    desk.run("experiment", "cancel", str(number))
    desk.wait_for_state(number, "CANCELED")
    assert "failed while it left: the other nodes have 300 s" in desk.log(number)
    assert (desk.experiment(number).path / "saved").exists()


# Saves a checkpoint every second and never looks at preemption; done five steps after it resumed.
IGNORES = """\
    import time
    import detslurm as det

    info = det.get_cluster_info()
    step, last = 0, 1000
    with det.core.init() as core:
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step = int((path / "step").read_text())
            last = step + 5
        while step < last:
            time.sleep(1)
            step += 1
            core.train.report_training_metrics(step, {"step": step})
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "step").write_text(str(step))
"""


@pytest.mark.slow
def test_code_that_never_looks_is_killed_and_goes_on(desk: Desk, site: Cluster) -> None:
    """Killed at the end of the grace or at the time limit, it loses a step, not a restart."""
    low = desk.submit(
        desk.project(IGNORES, name="low"),
        "resources.resource_pool=low",
        "slurm.sbatch_args=[--exclusive]",
    )
    limited = desk.submit(
        desk.project(IGNORES, name="limited"), "slurm.time=9", "slurm.signal_lead=5"
    )
    for number in (low, limited):
        desk.wait_for_steps(number, 3)
    # Slurm has no limit below a minute, but its administrator may set an end.
    site.command("scontrol", "update", f"JobId={desk.job(limited)}", "EndTime=now+10seconds")
    node = site.job(desk.job(low))["NodeList"]
    high = ["-p", "high", "-w", node, "--exclusive", "-o", "/dev/null"]
    desk.user.run("sbatch", *high, "--wrap=sleep 1")
    for number, cause in ((low, "preempted"), (limited, "time_limit")):
        desk.wait_for_state(number, "COMPLETED")
        assert desk.outcomes(number) == [cause, "completed"]
        trial = desk.trial(number)
        assert trial.restarts == 0
        last = trial.runs[1].resumed_steps + 5
        assert last > 8
        assert [row.steps for row in desk.metrics(number)] == list(range(1, last + 1))
        assert len(desk.view(number).jobs) == 1, "requeued, not submitted anew"
    wait_for(lambda: not site.queued(desk.user.name), PATIENCE, "an empty queue")
