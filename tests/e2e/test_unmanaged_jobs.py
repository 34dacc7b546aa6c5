"""Batch scripts that users wrote themselves: recorded, preempted, requeued, one curve."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from detslurm._base.addresses import interface_address
from detslurm._base.contract import INTERFACE
from detslurm.store import NotFound, trial_metrics
from tests.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk
from tests.e2e.processes import find_program
from tests.e2e.test_main_job import make_room
from tests.e2e.test_torch_distributed import outward_interface
from tests.envelope import unwrap

pytestmark = pytest.mark.cluster

# One number a step that depends on all before, saved when asked to leave; where there is a file
# "hold-JOB-STEP", it waits for that.
TRAIN = """\
    import os, sys, time
    import detslurm as det

    info = det.join_job()
    with det.core.init() as core:
        step, value = 0, 1.0
        if info.latest_checkpoint:
            with core.checkpoint.restore_path(info.latest_checkpoint) as path:
                step, value = eval((path / "state").read_text())
        while step < int(sys.argv[1]):
            step, value = step + 1, value * 0.9
            core.train.report_training_metrics(step, {"loss": value})
            while os.path.exists(f"hold-{os.environ['SLURM_JOB_NAME']}-{step}"):
                time.sleep(0.01)
                if core.preempt.should_preempt():
                    break
            if core.preempt.should_preempt():
                with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                    (path / "state").write_text(repr((step, value)))
                break
"""

# The same in the first of several ranks, while the others wait for it.
WORKER = """\
    import os, pathlib, sys, time
    import detslurm as det

    rank = int(os.environ["RANK"])
    alone = det.core.DistributedContext(
        rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1
    )
    if rank == 0:
        sys.argv = ["train.py", "40"]
        code = pathlib.Path("train.py").read_text()
        exec(code.replace("core.init()", "core.init(distributed=alone)"))
        if step == 40:
            pathlib.Path("done").touch()
    else:
        from detslurm._base.surviving_signal import survive_preemption_signal
        from detslurm._base.flag import PreemptFlag

        survive_preemption_signal(flag := PreemptFlag.of_this_node())
        print("rank", rank, "of", os.environ["WORLD_SIZE"], os.environ["DET_CHIEF_IP"], flush=True)
        while not flag.preempt and not pathlib.Path("done").exists():
            time.sleep(0.05)
"""


# The least that a script may do: no block, no end.
LOOSE = """\
    import detslurm as det

    core, value = det.core.init(), 1.0
    for step in range(1, 4):
        value *= 0.9
        core.train.report_training_metrics(step, {"loss": value})
"""


def batch(desk: Desk, lines: str, *args: str, words: Sequence[str] = ()) -> str:
    """Submit a batch script of the user's own; the job's id."""
    head = "#!/bin/bash\n#SBATCH --open-mode=append --output=job.out --requeue\n"
    path = desk.write("job.sh", "")
    path.write_text(head + lines)
    return desk.user.run("sbatch", "--parsable", *args, str(path), *words).stdout.strip()


def wait_for_experiment(desk: Desk, steps: int, number: int = 1) -> None:
    def there() -> bool:
        with contextlib.suppress(NotFound):  # the job has not begun it yet
            return desk.trial(number).steps >= steps
        return False

    wait_for(there, PATIENCE, f"step {steps} of experiment {number}")


def named(desk: Desk, name: str, *, index: int = 0, steps: int) -> int:
    """The experiment of that name, once one of its trials has reported that many steps."""

    def found() -> int:
        if not desk.store.path.exists():  # the first job has not made it yet
            return 0
        numbers = [number for number, state in listed(desk) if desk.view(number).name == name]
        return numbers[0] if numbers and desk.trial(numbers[0], index).steps >= steps else 0

    return wait_for(found, PATIENCE, f"step {steps} of {name}")


def assert_one_curve(desk: Desk, steps: int, number: int = 1, index: int = 0) -> None:
    trial = desk.trial_dir(number, index)
    rows = [(row.steps, row.metrics["loss"]) for row in trial_metrics(trial)]
    value, expected = 1.0, []
    for step in range(1, steps + 1):
        value *= 0.9
        expected.append((step, value))
    assert rows == expected


def listed(desk: Desk) -> list[tuple[int, str]]:
    rows = unwrap(desk.run("experiment", "list", "--json").stdout)
    return [(row["id"], row["state"]) for row in rows]


def test_a_plain_script_is_preempted_and_goes_on(desk: Desk, site: Cluster) -> None:
    """core.init() in the script that `batch-script print` has: one trial, two runs, one curve."""
    desk.write("train.py", TRAIN)
    desk.write("hold-plain-4", "")
    script = desk.run("batch-script", "print", "plain").stdout.replace(
        "train.py\n", "train.py 40\n"
    )
    job = batch(desk, script, "--partition=low", "--job-name=plain")
    wait_for_experiment(desk, 4)
    make_room(desk)
    site.wait_state(job, "COMPLETED", timeout=PATIENCE)
    assert desk.outcomes(1) == ["preempted", "completed"]
    runs = desk.trial(1).runs
    assert [run.job.restart_count for run in runs] == [0, 1]
    assert runs[1].resumed_steps == 4
    assert_one_curve(desk, 40)
    # Since 24.05 Slurm may have requeued it by itself once more; a fourth start would train again.
    if int(site.job(job)["Restarts"]) < 2:
        site.command("scontrol", "requeue", job)
    wait_for(lambda: int(site.job(job)["Restarts"]) >= 2, PATIENCE, "the third start")
    site.wait_state(job, "COMPLETED", timeout=PATIENCE)
    assert desk.outcomes(1) == ["preempted", "completed"]
    assert listed(desk) == [(1, "COMPLETED")]
    described = desk.run("experiment", "describe", "1").stdout
    assert "Entrypoint : " in described
    assert "train.py 40" in described


def test_a_job_of_several_trainings_does_none_of_them_twice(desk: Desk, site: Cluster) -> None:
    """The first is done when the job is preempted; the other two, begun at once, go on, whichever
    of them is the first step now."""
    desk.write("train.py", TRAIN)
    hold = desk.write("hold-several-24", "")
    # Memory of its own for each: Slurm may refuse a step while the one before is being tidied up.
    lines = (
        "srun --mem=100 python3 train.py 10",
        'ends=(40 41); [ -n "$SLURM_RESTART_COUNT" ] && ends=(41 40)',
        "srun --mem=100 --overlap python3 train.py ${ends[0]} &",
        "until [ -e second ]; do sleep 0.1; done",
        "srun --mem=100 --overlap python3 train.py ${ends[1]} &",
        "wait",
    )
    words = ("--partition=low", "--job-name=several", "--mem=300")
    job = batch(desk, "\n".join(lines) + "\n", *words)
    for number in (2, 3):
        wait_for_experiment(desk, 24, number)
        hold.with_name("second").touch()
    make_room(desk)
    site.wait_state(job, "COMPLETED", timeout=PATIENCE)
    assert [desk.outcomes(number)[-1] for number in (1, 2, 3)] == ["completed"] * 3
    assert dict(listed(desk)) == {1: "COMPLETED", 2: "COMPLETED", 3: "COMPLETED"}
    assert len(desk.outcomes(1)) == 1
    for number, steps in ((1, 10), (2, 40), (3, 41)):
        assert_one_curve(desk, steps, number)
    assert desk.user.cwd is not None
    assert (
        "trial 1 is over, and its job was started again" in (desk.user.cwd / "job.out").read_text()
    )


@pytest.mark.nightly
def test_sigusr1_and_a_job_from_inside(desk: Desk, site: Cluster) -> None:
    """The signal that a script chose lets its code save and go on; the job that the code submits
    at its end inherits the environment, and is an experiment of its own. Its script ends without
    a word: all is recorded, and it says where."""
    more = """
        if step == int(sys.argv[1]):
            import subprocess

            subprocess.run(["sbatch", "next.sh"], check=True)
    """
    desk.write("train.py", TRAIN)
    desk.write("first.py", TRAIN + more)
    desk.write("loose.py", LOOSE)
    head = "#!/bin/bash\n#SBATCH --job-name=next --output=next.out\n"
    asks = "srun python3 -c 'import detslurm; detslurm.join_job()'"
    desk.write("next.sh", f"{head}srun python3 loose.py\n{asks}\n")
    desk.write("hold-first-2", "")
    job = batch(desk, "srun python3 first.py 4\n", "--job-name=first")
    wait_for_experiment(desk, 2)
    desk.user.run("scancel", "--signal=USR1", job)
    site.wait_state(job, "COMPLETED", timeout=PATIENCE)
    assert desk.outcomes(1) == ["preempted", "completed"]
    assert_one_curve(desk, 4)
    number = named(desk, "next", steps=3)
    desk.wait_for_state(number, "COMPLETED")
    assert_one_curve(desk, 3, number)
    asked = (number + 1, "COMPLETED")  # the step that only asked where it is
    wait_for(lambda: asked in listed(desk), PATIENCE, "the next step's end")
    for done in (number, number + 1):
        assert desk.outcomes(done) == ["completed"]  # as it said itself, before the job ended
    assert desk.user.cwd is not None
    shown = (desk.user.cwd / "next.out").read_text()
    assert shown.count(f"recorded as experiment {number};") == 1
    assert f"step 3: loss {0.9**3:.4g}" in shown


@pytest.mark.nightly
def test_the_launcher_in_a_script_of_ones_own(desk: Desk, site: Cluster) -> None:
    """Two nodes with two workers each, on the network of one's choice, preempted and requeued by
    Slurm: as if submitted here."""
    desk.write("train.py", TRAIN)
    desk.write("worker.py", WORKER)
    desk.write("hold-launched-4", "")
    launch = "python3 -m detslurm.launch.torch_distributed --nproc-per-node=2 -- worker.py"
    interface = outward_interface()
    script = f"export {INTERFACE}={interface}\nsrun --ntasks-per-node=1 {launch}\n"
    job = batch(desk, script, "--partition=low", "--nodes=2", "--job-name=launched")
    wait_for_experiment(desk, 4)
    make_room(desk)
    site.wait_state(job, "COMPLETED", timeout=PATIENCE)
    assert desk.outcomes(1) == ["preempted", "completed"]
    assert_one_curve(desk, 40)
    assert listed(desk) == [(1, "COMPLETED")]
    assert desk.user.cwd is not None
    said = (desk.user.cwd / "job.out").read_text()
    for rank in (1, 2, 3):
        assert f"[rank={rank}] rank {rank} of 4 {interface_address(interface)}" in said


def test_a_launcher_without_srun_trains_nowhere(desk: Desk, site: Cluster) -> None:
    """On one of two nodes, or on the login node in the shell of salloc, it would do so unseen."""
    launch = "python3 -m detslurm.launch.torch_distributed train.py"
    desk.write("train.py", "open('trained', 'w')")
    job = batch(desk, f"{launch}\n", "--nodes=2")
    site.wait_state(job, "FAILED", timeout=PATIENCE)
    assert desk.user.cwd is not None
    said = (desk.user.cwd / "job.out").read_text()
    assert f"job {job} has 2 nodes, and without srun one of them would train" in said
    salloc = desk.user.run("salloc", "--ntasks=1", *launch.split(), check=False)
    assert salloc.returncode != 0
    assert "this shell is not on a node of job" in salloc.stderr
    assert "start it with `srun --ntasks-per-node=1`" in salloc.stderr
    assert not (desk.user.cwd / "trained").exists()


def test_a_failure_on_another_node_is_no_preemption(desk: Desk, site: Cluster) -> None:
    """srun ends the first node with the signal of a preemption: the job fails, and stays failed."""
    failing = """\
        import os, time

        if os.environ["GROUP_RANK"] == "1":
            import no_such_module
        time.sleep(600)
    """
    desk.write("failing.py", failing)
    launch = "srun --kill-on-bad-exit=1 --ntasks-per-node=1 python3 -m detslurm.launch"
    line = f"{launch}.torch_distributed failing.py\n"
    job = batch(desk, line, "--partition=low", "--nodes=2", "--job-name=failing")
    site.wait_state(job, "FAILED", timeout=PATIENCE)
    assert desk.outcomes(1) == ["error"]
    assert site.job(job)["Restarts"] == "0"


def test_code_that_a_preemption_kills_before_it_has_saved_starts_again(
    desk: Desk, site: Cluster
) -> None:
    """It failed without a checkpoint, but Slurm's record of the job says why."""
    dying = """\
        import os, pathlib, time

        if "SLURM_RESTART_COUNT" not in os.environ:
            pathlib.Path("began").touch()
            time.sleep(600)
    """
    began = desk.write("dying.py", dying).with_name("began")
    line = "srun --ntasks=1 python3 -m detslurm.launch.torch_distributed dying.py\n"
    job = batch(desk, line, "--partition=low", "--job-name=dying")
    wait_for(began.exists, PATIENCE, "the worker")
    make_room(desk)
    site.wait_state(job, "COMPLETED", timeout=PATIENCE)
    assert desk.outcomes(1) == ["preempted", "completed"]
    assert [run.exit_code for run in desk.trial(1).runs] == [143, 0]


def test_an_array_is_one_experiment(desk: Desk, site: Cluster) -> None:
    """One trial for each element, whatever its arguments and however irregular its indices. The
    one whose code was killed can be activated: the user's own script runs again for it alone, where
    its job ran."""
    desk.write("train.py", TRAIN)
    hold = desk.write("hold-irregular-24", "")
    script = "srun python3 train.py $((SLURM_ARRAY_TASK_ID + $1))\n"
    words = ["20", "two words"]
    regular = batch(desk, script, "--array=2-8:3", "--job-name=regular", words=["0"])
    asked = ("--array=1,5,6", "--job-name=irregular", "-p", "low")
    irregular = batch(desk, script, *asked, words=words)
    killed = find_program(desk, r"\S*python3 train.py 25\b")
    other = named(desk, "irregular", index=1, steps=24)
    os.kill(killed, signal.SIGKILL)
    hold.unlink()
    for job, elements in ((regular, (2, 5, 8)), (irregular, (1, 6))):
        for element in elements:
            site.wait_state(f"{job}_{element}", "COMPLETED")
    site.wait_state(f"{irregular}_5", "FAILED")
    assert dict(listed(desk)) == {other: "ERROR", 3 - other: "COMPLETED"}
    assert tasks(desk, 3 - other) == [[2], [5], [8]]
    assert tasks(desk, other) == [[1], [5], [6]]

    desk.run("experiment", "activate", str(other))
    wait_for(lambda: desk.outcomes(other, 1) == ["lost", "completed"], PATIENCE, "the second run")
    assert tasks(desk, other) == [[1], [5, 5], [6]]
    assert site.job(desk.job(other))["Partition"] == "low"
    kept = [fact for fact in desk.experiment(other).facts() if fact["type"] == "script"]
    assert [fact["arguments"] for fact in kept] == [words]
    assert_one_curve(desk, 25, other, 1)
    assert dict(listed(desk)) == {1: "COMPLETED", 2: "COMPLETED"}


def tasks(desk: Desk, number: int) -> list[list[int | None]]:
    """The array's index in every run of each trial."""
    trials = desk.view(number).trials
    return [
        [run.job.array_task_id for run in desk.trial(number, index).runs]
        for index in range(len(trials))
    ]


def test_a_script_that_submits_itself_is_another_experiment(desk: Desk, site: Cluster) -> None:
    """What is said of the first one's trial is neither that it never ran nor that it is to be
    activated: the script's next job trains already."""
    desk.write("train.py", TRAIN)
    desk.write("hold-itself-2", "")
    lines = (
        "trap : USR1\nsrun python3 train.py 4 &\nwait; wait\n[ -e next ] || sbatch $0\ntouch next\n"
    )
    job = batch(desk, lines, "--no-requeue", "--job-name=itself")
    wait_for_experiment(desk, 2)
    desk.user.run("scancel", "--signal=USR1", job)
    wait_for(lambda: desk.outcomes(1) == ["preempted"], PATIENCE, "the first to leave")
    site.wait_state(job, "COMPLETED", timeout=PATIENCE)
    desk.write("hold-itself-2", "").unlink()
    wait_for_experiment(desk, 4, 2)
    desk.wait_for_state(2, "COMPLETED")
    said = desk.run("experiment", "describe", "1").stdout
    assert "before run 2 began; `detslurm e activate 1` submits its script again" in said
    assert "Not so if the script has submitted itself" in said


def test_activate_says_what_it_can_not_do(desk: Desk, site: Cluster) -> None:
    """Code that was started by hand under srun leaves no script that could be submitted again."""
    desk.write("train.py", TRAIN)
    desk.write("hold-bare-1", "")
    with desk.user.popen(["srun", "--job-name=bare", "python3", "train.py", "99"]) as srun:
        number = named(desk, "bare", steps=1)
        os.kill(find_program(desk, r"\S*python3 train.py 99\b"), signal.SIGKILL)
        srun.communicate(timeout=PATIENCE)
    refused = desk.run("experiment", "activate", str(number), check=False)
    assert refused.returncode != 0
    assert "its job had no batch script" in refused.stderr


def test_limits_intents_and_scancel(desk: Desk, site: Cluster) -> None:
    """Near its time limit the code saves and the job is requeued. pause and
    cancel let the code save and leave, activate goes on in the same job; what scancel has ended is
    CANCELED, not requeued."""
    desk.write("train.py", TRAIN)
    desk.write("hold-limit-39", "")
    limited = ("--time=10", "--signal=TERM@40", "--job-name=limit")
    jobs = {"limit": batch(desk, "srun python3 train.py 40\n", *limited)}
    for name in ("pause", "cancel", "kill"):
        desk.write(f"hold-{name}-4", "")
        jobs[name] = batch(desk, "srun python3 train.py 40\n", f"--job-name={name}")
    numbers = {name: named(desk, name, steps=39 if name == "limit" else 4) for name in jobs}
    desk.user.run("scancel", jobs["kill"])
    for intent in ("pause", "cancel"):
        desk.run("experiment", intent, str(numbers[intent]))
    for name, outcome in (("pause", "paused"), ("cancel", "canceled"), ("kill", "canceled")):
        wait_for(lambda: desk.outcomes(numbers[name]) == [outcome], PATIENCE, f"{name} to be heard")  # noqa: B023
        assert len(desk.trial(numbers[name]).checkpoints) == 1
    site.wait_state(jobs["pause"], "PENDING")
    desk.run("experiment", "activate", str(numbers["pause"]))
    limit = numbers["limit"]
    # Slurm may warn as soon as the limit is near, also code that has not begun to listen; and the
    # next run has to have its time before it begins.
    site.command("scontrol", "update", f"JobId={jobs['limit']}", "EndTime=now+60seconds")
    wait_for(lambda: desk.outcomes(limit)[:1] == ["time_limit"], PATIENCE, "the warning")
    site.command("scontrol", "update", f"JobId={jobs['limit']}", "TimeLimit=10", check=False)
    for name in ("pause", "limit"):
        site.wait_state(jobs[name], "COMPLETED", timeout=PATIENCE)
    assert desk.outcomes(numbers["pause"]) == ["paused", "completed"]
    assert_one_curve(desk, 40, numbers["pause"])
    assert desk.outcomes(numbers["limit"]) == ["time_limit", "completed"]
    assert_one_curve(desk, 40, numbers["limit"])
    states = dict(listed(desk))
    ends = ["COMPLETED", "COMPLETED", "CANCELED", "CANCELED"]
    assert [states[numbers[name]] for name in jobs] == ends


def test_recording_can_be_switched_off(desk: Desk, site: Cluster) -> None:
    """DETSLURM_TRACK=0 in the script: nothing is written."""
    desk.write("train.py", "import detslurm as det\nassert det.join_job() is None\n")
    job = batch(desk, "DETSLURM_TRACK=0 srun python3 train.py\n")
    site.wait_state(job, "COMPLETED", timeout=PATIENCE)
    assert not Path(desk.store.path / "experiments").exists()
