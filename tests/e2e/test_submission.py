"""Submitting: what is frozen, what is refused, what reaches the code, and races."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import CommandResult
from tests.cli.test_submitting import assert_refused
from tests.cluster import Cluster, User
from tests.cluster.waiting import wait_for
from tests.config.bent import BENT
from tests.e2e.desk import PATIENCE, Desk
from tests.envelope import unwrap

pytestmark = [pytest.mark.cluster, pytest.mark.strange_site]


def test_bent_configurations_are_refused_on_one_screen(desk: Desk, site: Cluster) -> None:
    """Exit code 2, line numbers, what was expected; nothing queued. One of each dozen: all of them
    are refused in tests/cli."""
    some = BENT[::12]
    desk.write("bent/train.py", "")
    for bent in some:
        path = desk.write(f"bent/{bent.name}.yaml", "")
        path.write_text(bent.text)  # as it is: `write` takes indentation away
        done = desk.run("submit", str(path), check=False)
        assert_refused(bent, CommandResult(done.returncode, done.stdout, done.stderr))
    assert site.queued(desk.user.name) == []
    assert not list((desk.store.path / "experiments").glob("*/facts/*"))


PRINTS = "import os, sys\nprint('version one')\n"


def test_code_is_frozen_at_submission(desk: Desk) -> None:
    """A later edit of the directory never reaches a queued trial."""
    config = desk.project(PRINTS)
    number = desk.submit(config, "--paused")
    (config.parent / "train.py").write_text("print('version two')")
    desk.run("experiment", "activate", str(number))
    desk.wait_for_state(number, "COMPLETED")
    assert "version one" in desk.log(number)


def test_detignore_and_the_size_limit(desk: Desk) -> None:
    """Ignored files are not shipped; a context past the limit is refused with its largest files."""
    config = desk.project(PRINTS)
    project = config.parent
    desk.write("project/.detignore", "data/\n*.bin\n!keep.bin\n")
    desk.write("project/data/huge", "x")
    desk.write("project/keep.bin", "x")
    desk.write("project/drop.bin", "x")
    desk.write("project/__pycache__/old.pyc", "x")
    number = desk.submit(config, "--paused")
    code = desk.experiment(number).code
    shipped = sorted(str(p.relative_to(code)) for p in code.rglob("*") if p.is_file())
    assert shipped == ["experiment.yaml", "keep.bin", "train.py"]
    with (project / "weights.dat").open("wb") as big:
        big.truncate(96 * 1024 * 1024)
    refused = desk.run("submit", str(config), check=False)
    assert refused.returncode != 0
    assert "exceeds the maximum allowed size" in refused.stderr
    assert "weights.dat" in refused.stderr


def test_included_files_are_shipped_beside_the_context(desk: Desk) -> None:
    """--include adds files and directories; a name that exists already is refused."""
    config = desk.project("import shared.code\nprint(open('extra.txt').read())")
    desk.write("elsewhere/shared/code.py", "print('included code')")
    extra = desk.write("elsewhere/extra.txt", "included text")
    include = ["--include", str(extra.parent / "shared"), "--include", str(extra)]
    number = desk.submit(config, *include)
    desk.wait_for_state(number, "COMPLETED")
    assert "included code" in desk.log(number)
    assert "included text" in desk.log(number)
    twice = desk.run("submit", str(config), "-i", str(config), check=False)
    assert "duplicate path detected" in twice.stderr


SEVERAL_NODES = (
    "entrypoint=/opt/bin/horovodrun --gloo -np 4 python3 train.py; resources.slots_per_trial=4;"
    " slurm.slots_per_node=2"
)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("entrypoint=python3 trian.py", "did you mean 'train.py'"),
        ("entrypoint=no-such-command --now", "no command 'no-such-command'"),
        (
            "entrypoint=python3 -m determined.launch.ray train.py",
            "detslurm has autohorovod, deepspeed, horovod",
        ),
        ("entrypoint=python3 -m nosuch", "can't run a module 'nosuch'"),
        ("resources.resource_pool=nowhere", "nowhere"),
        ("resources.slots_per_trial=4000", ""),
        (SEVERAL_NODES, "each node would train by itself"),
        ("searcher.name=adaptive_asha", "max_trials"),
    ],
)
def test_what_would_fail_later_is_refused_now(
    desk: Desk, site: Cluster, override: str, complaint: str
) -> None:
    """Entrypoint, partition, account and size are checked before anything is queued."""
    options = [word for one in override.split("; ") for word in ("--config", one)]
    done = desk.run("submit", str(desk.project(PRINTS)), *options, check=False)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert site.queued(desk.user.name) == []


def test_a_dry_run_queues_and_writes_nothing(desk: Desk, site: Cluster) -> None:
    """It prints the plan and a batch script that sbatch accepts."""
    config = desk.project(PRINTS, "resources: {slots_per_trial: 2}")
    done = desk.run("submit", str(config), "--dry-run")
    script = done.stdout[done.stdout.index("#!/bin/bash") :]
    assert "exec " in script and "detslurm.exec.runner" in script
    assert site.queued(desk.user.name) == []
    assert not list((desk.store.path / "experiments").iterdir())
    plan = unwrap(desk.run("submit", str(config), "--dry-run", "--json").stdout)
    assert (plan["trials"], plan["slots_per_trial"]) == (1, 2)


def test_a_dry_run_names_the_cost(desk: Desk) -> None:
    """By the time limit; and once a trial has completed, by what that took and what is free now."""
    config = desk.project(PRINTS, "resources: {slots_per_trial: 2}")
    words = ("submit", str(config), "--dry-run", "--json", "--config", "slurm.time=90")
    before = unwrap(desk.run(*words).stdout)["cost"]
    assert before["most_slot_hours"]["value"] == 3
    assert before["expected_slot_hours"]["value"] is before["wall_seconds"]["value"] is None
    number = desk.submit(config)
    desk.wait_for_state(number, "COMPLETED")
    after = unwrap(desk.run(*words).stdout)["cost"]
    seconds = after["wall_seconds"]["value"]
    assert seconds > 0 and " slots of 'main' are free" in after["wall_seconds"]["source"]
    assert after["expected_slot_hours"]["value"] == pytest.approx(2 * seconds / 3600)
    assert f"experiment {number}" in after["expected_slot_hours"]["source"]


HOSTILE = "$(touch pwned) `touch pwned` '\"; touch pwned; #\\ äß"


def test_no_text_of_the_user_is_ever_executed(desk: Desk) -> None:
    """Names, descriptions, values and paths full of shell syntax arrive as they are."""
    script = f"""\
        import os, detslurm as det
        assert os.environ["PLAIN"] == "a=b=c", os.environ["PLAIN"]
        assert os.environ["HOSTILE"] == {HOSTILE!r} + "\\nsecond line", os.environ["HOSTILE"]
        info = det.get_cluster_info()
        assert info.trial.hparams["text"] == {HOSTILE!r}
        assert info.user_data == {{"text": {HOSTILE!r}}}
        print("all as it was")
    """
    config = desk.project(script, name="a 'project' $(touch pwned)")
    data = {
        "name": HOSTILE,
        "description": HOSTILE,
        "entrypoint": ["python3", "train.py"],
        "environment": {
            "environment_variables": ["PLAIN=a=b=c", f"HOSTILE={HOSTILE}\nsecond line"]
        },
        "hyperparameters": {"text": HOSTILE},
        "data": {"text": HOSTILE},
        "searcher": {"name": "single", "metric": "loss", "max_length": 1},
        "slurm": {"slot_type": "cpu"},
    }
    config.write_text(json.dumps(data))
    number = desk.submit(config)
    desk.wait_for_state(number, "COMPLETED", "ERROR")
    assert "all as it was" in desk.log(number)
    assert desk.user.cwd is not None
    assert not list(desk.user.cwd.parent.rglob("pwned"))
    assert desk.view(number).name == HOSTILE


@pytest.mark.parametrize(
    "entrypoint",
    [
        ["python3", "train.py", "--word", "two words"],
        "python3 train.py --word 'two words'",
        "cd . && WORD=x env python3 ./train.py --word 'two words' | cat",
        "sh -c 'exec bash ./inner.sh'",
    ],
    ids=["list", "string", "shell", "nested"],
)
def test_forms_of_the_entrypoint(desk: Desk, entrypoint: str | list[str]) -> None:
    """Lists are executed, strings go to the shell, launchers nest; the startup hook is sourced."""
    script = """\
        import os, pathlib, sys
        print("argv", sys.argv[1:], os.environ["FROM_HOOK"], pathlib.Path.cwd().name)
        pathlib.Path("scratch").write_text("code may write beside itself")
    """
    config = desk.project(script)
    desk.write("project/startup-hook.sh", "export FROM_HOOK='of the hook'\n")
    desk.write("project/inner.sh", "python3 train.py --word 'two words'\n")
    number = desk.submit(config, f"entrypoint={json.dumps(entrypoint)}")
    desk.wait_for_state(number, "COMPLETED")
    assert "argv ['--word', 'two words'] of the hook detslurm-" in desk.log(number)
    assert not (desk.experiment(number).code / "scratch").exists()


QOS_LIMIT = """\
    #!/bin/sh
    [ "$1" = --test-only ] && exit 0
    echo "sbatch: error: QOSMaxSubmitJobPerUserLimit
    sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit \
limit, user's size and/or time limits)" >&2
    exit 1
    """


def test_a_failing_startup_hook_ends_the_run(desk: Desk) -> None:
    """Training never starts half prepared, and the reason says so. The second failure is the last;
    what fails for sure is refused, and what harms the user's environment is named."""
    config = desk.project(PRINTS)
    hook = desk.write("project/startup-hook.sh", "")
    hook.write_bytes(b"export A=1\r\n")
    refused = desk.run("submit", str(config), check=False)
    assert "startup-hook.sh has line ends of Windows" in refused.stderr
    hook.write_text("true || pip install -e .\necho preparing\nfalse\necho not reached\n")
    said = desk.run("submit", str(config)).stderr
    assert "makes your environment point into the run's working directory" in said
    number = 1
    desk.wait_for_state(number, "ERROR")
    assert desk.outcomes(number) == ["restart", "error"]
    assert "preparing" in desk.log(number)
    assert "not reached" not in desk.log(number)
    assert "version one" not in desk.log(number)
    why = "startup-hook.sh exited with 1; the last two runs failed with the same error"
    assert (desk.trial(number).end_reason or "").startswith(why)


def test_a_submission_that_slurm_refuses_leaves_nothing(desk: Desk) -> None:
    """At a limit of the QOS the advice is what helps, and no experiment stays in the list."""
    shim = desk.write("shim/sbatch", QOS_LIMIT)
    shim.chmod(0o755)
    env = {"PATH": f"{shim.parent}:{desk.user.env['PATH']}"}
    config = desk.project(PRINTS, "hyperparameters: {x: {type: int, minval: 1, maxval: 50}}\n")
    grid = ["--config", "searcher={name: random, metric: loss, max_trials: 50}"]
    refused = desk.run("submit", str(config), *grid, check=False, env=env)
    assert refused.returncode != 0
    assert "raise slurm.trials_per_job. It is 1 now, which makes 50 elements." in refused.stderr
    assert unwrap(desk.run("experiment", "list", "--all", "--json").stdout) == []
    assert not desk.experiment(1).code.exists()


SLOW_SBATCH = """\
    #!/bin/sh
    case "$*" in *--test-only*) exec {sbatch} "$@" ;; esac
    trap '' INT
    {sbatch} "$@" >{answer}
    touch {queued}
    exec sleep 60
    """


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda one: one.name)
def test_ctrl_c_while_sbatch_runs_leaves_no_job(desk: Desk, number: signal.Signals) -> None:
    """Slurm has taken it and nobody was told: it is found, and cancelled. So it is where the
    connection to the login node breaks off."""
    queued = desk.user.home / f"queued-{number.name}"
    text = SLOW_SBATCH.format(
        sbatch=shutil.which("sbatch"), answer=desk.user.home / "answer", queued=queued
    )
    shim = desk.write("shim/sbatch", text)
    shim.chmod(0o755)
    env = {"PATH": f"{shim.parent}:{desk.user.env['PATH']}"}
    config = desk.project(PRINTS)
    process = desk.user.popen(["detslurm", "submit", "--paused", str(config)], env=env)
    wait_for(queued.exists, PATIENCE, "the job to be queued")
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number and "Traceback" not in err, err
    job = (desk.user.home / "answer").read_text().strip()
    shown = desk.user.run("squeue", "--noheader", "--me", "--format=%F").stdout.split()
    assert job and job not in shown
    assert unwrap(desk.run("experiment", "list", "--all", "--json").stdout) == []


def test_nodes_that_are_out_of_service_refuse_nothing(desk: Desk, site: Cluster) -> None:
    """sbatch --test-only knows no nodes but those in service; sbatch queues the job for later.
    What no node could ever run is refused all the same."""
    config = desk.project(PRINTS)
    site.command("scontrol", "update", "nodename=ALL", "state=drain", "reason=maintenance")
    try:
        done = desk.run("submit", str(config), "--json", "--config", "max_restarts=0")
        assert "nodes are out of service, and the jobs may wait for them: n[1-" in done.stderr
        number = unwrap(done.stdout)["experiment_id"]
        assert desk.view(number).state == "ACTIVE"
        huge = ("--config", "slurm.sbatch_args=[--mem=900T]")
        refused = desk.run("submit", str(config), *huge, check=False)
        assert refused.returncode == 1 and "No node of this partition can ever" in refused.stderr
        assert len(unwrap(desk.run("experiment", "list", "--all", "--json").stdout)) == 1
    finally:
        site.command("scontrol", "update", "nodename=ALL", "state=resume")
    desk.wait_for_state(number, "COMPLETED")


def test_a_time_limit_that_reaches_into_a_maintenance(desk: Desk, site: Cluster) -> None:
    """A warning names the time that would start before it; shorter jobs get none."""
    config = desk.project(PRINTS)
    begin, about = "starttime=now+2hours", ("duration=60", "nodes=ALL", "users=root")
    made = ("reservation=upkeep", "flags=maint,ignore_jobs", begin, *about)
    site.command("scontrol", "create", *made)
    try:
        asked = ("submit", str(config), "--dry-run", "--config")
        text = desk.run(*asked, "slurm.time=4:00:00").stderr
        assert "the maintenance upkeep begins at" in text and "slurm.time: 1:5" in text
        assert "maintenance" not in desk.run(*asked, "slurm.time=1:00:00").stderr
    finally:
        site.command("scontrol", "delete", "reservation=upkeep")


def test_every_documented_variable_is_there(desk: Desk) -> None:
    """ClusterInfo and TrialInfo tell the truth about the job."""
    script = """\
        import json, detslurm as det
        info = det.get_cluster_info()
        print("INFO", json.dumps({
            "slots": info.slot_ids, "agent": info.agent_id, "type": info.task_type,
            "trial": info.trial.trial_id, "experiment": info.trial.experiment_id,
            "seed": info.trial.trial_seed, "hparams": info.trial.hparams,
            "addrs": len(info.container_addrs), "rank": info.container_rank,
            "counts": info.container_slot_counts, "data": info.user_data,
            "latest": info.latest_checkpoint, "run": info.trial._trial_run_id}))
    """
    config = desk.project(
        script, "hyperparameters: {lr: 0.1, net: {layers: 3}}\ndata: {where: here}\n"
    )
    number = desk.submit(config, "slurm.slot_type=cuda", "resources.slots_per_trial=2")
    desk.wait_for_state(number, "COMPLETED")
    info = json.loads(desk.log(number).split("INFO ", 1)[1].splitlines()[0])
    trial = desk.trial(number)
    assert info.pop("agent") in trial.runs[0].job.nodes
    assert len(info.pop("slots")) == 2
    assert info.pop("seed") == trial.seed
    assert info == {
        "type": "TRIAL", "trial": trial.id, "experiment": number, "run": 1, "latest": None,
        "hparams": {"lr": 0.1, "net": {"layers": 3}}, "data": {"where": "here"},
        "addrs": 1, "rank": 0, "counts": [2],
    }  # fmt: skip


def test_several_nodes_meet_and_fall_together(desk: Desk) -> None:
    """One agent a node, logs of both with their rank; a failed worker ends the rest."""
    script = """\
        import os, sys, time, detslurm as det
        info = det.get_cluster_info()
        rank = info.container_rank
        print(f"node {rank} of {len(info.container_addrs)} on {info.agent_id}", "x" * 3000)
        said = os.environ["DETSLURM_ROOT"] + "/said"
        if info.trial._trial_run_id == 1:
            if rank == 0:
                open(said, "w").close()
                time.sleep(600)
            while not os.path.exists(said):
                time.sleep(0.01)
            sys.exit(3)
    """
    config = desk.project(script, "resources: {slots_per_trial: 4}\n")
    number = desk.submit(config, "slurm.slots_per_node=2")
    desk.wait_for_state(number, "COMPLETED")
    trial = desk.trial(number)
    assert desk.outcomes(number) == ["restart", "completed"]
    assert trial.runs[0].exit_code == 3
    assert len(trial.runs[0].job.nodes) == 2
    log = desk.log(number)
    for rank, node in enumerate(trial.runs[0].job.nodes):
        assert log.count(f"[rank={rank}] || node {rank} of 2 on {node} {'x' * 3000}\n") == 2


GRID = """\
    searcher: {name: grid, metric: loss, max_concurrent_trials: 0}
    hyperparameters:
      a: {type: int, minval: 0, maxval: 3, count: 4}
      b: {type: int, minval: 0, maxval: 4, count: 5}
"""
NEAR_NO_OP = """\
    import os
    print("point", os.environ["DET_HPARAMS"])
"""


def test_a_grid_is_one_array(desk: Desk, site: Cluster) -> None:
    """One job id for all, every point once, within the budget of inodes, then all nodes idle."""
    config = desk.project(NEAR_NO_OP)
    config.write_text(config.read_text().split("searcher")[0] + "slurm: {slot_type: cpu}\n")
    with config.open("a") as file:
        file.write("\n".join(line[4:] for line in GRID.splitlines()))
    number = desk.submit(config, "--paused")
    before = _inodes(desk.store.path)
    assert before < 125, "at submission: buckets and a few files"
    desk.run("experiment", "activate", str(number))
    desk.wait_for_state(number, "COMPLETED", timeout=280)
    view = desk.view(number)
    assert len(view.jobs) == 1
    assert view.trial_states == {"COMPLETED": 20}
    points = {(t.hparams["a"], t.hparams["b"]) for t in view.trials if t.hparams}
    assert points == {(a, b) for a in range(4) for b in range(5)}
    assert _inodes(desk.store.path) - before <= 6 * 20
    wait_for(site.all_idle, PATIENCE, "idle nodes")


def _inodes(path: Path) -> int:
    return sum(len(dirs) + len(files) for _, dirs, files in os.walk(path))


def test_parallel_submissions_get_distinct_ids(desk: Desk, site: Cluster) -> None:
    """Six submissions at once: six experiments, six trials, six jobs."""
    config = desk.project(PRINTS)
    with ThreadPoolExecutor(6) as pool:
        numbers = list(pool.map(lambda _: desk.submit(config, "--paused"), range(6)))
    assert sorted(numbers) == list(range(1, 7))
    trials = {desk.experiment(n).created().first_trial for n in numbers}
    jobs = {desk.job(n) for n in numbers}
    assert len(trials) == len(jobs) == 6


def test_two_users_have_stores_of_their_own(desk: Desk, bob: User) -> None:
    """Neither sees or stops the other's work."""
    other = Desk(bob)
    number = desk.submit(desk.project(PRINTS), "--paused")
    assert other.submit(other.project(PRINTS), "--paused") == 1
    listed = unwrap(desk.run("experiment", "list", "--json").stdout)
    assert [row["id"] for row in listed] == [number]
    foreign = {"DETSLURM_ROOT": desk.user.env["DETSLURM_ROOT"]}
    refused = bob.run("detslurm", "experiment", "kill", str(number), env=foreign, check=False)
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    assert desk.view(number).state == "PAUSED"


def test_the_submitting_cli_killed(desk: Desk) -> None:
    """kill -9 of `submit` at any moment leaves a store that commands read and submit goes on."""
    config = desk.project(PRINTS)
    numbers = []
    for delay in (0.05, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4, 0.6):
        process = desk.user.popen(["detslurm", "submit", str(config)])
        try:
            process.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if desk.store.path.exists():  # a slow machine may not have come so far
            desk.run("experiment", "list")
        numbers.append(desk.submit(config))
    for number in numbers:
        desk.wait_for_state(number, "COMPLETED")
        code = desk.experiment(number).code
        assert sorted(path.name for path in code.iterdir()) == ["experiment.yaml", "train.py"]
    for row in unwrap(desk.run("experiment", "list", "--json").stdout):
        desk.run("experiment", "describe", str(row["id"]))


def test_interrupting_a_submission_leaves_no_mess(desk: Desk, site: Cluster) -> None:
    """Ctrl-C: exit 130, no traceback, nothing of it in the queue or all of it."""
    config = desk.project(PRINTS)
    process = desk.user.popen(["detslurm", "submit", str(config)])
    # Before, Python itself may still be starting, and says what it likes.
    wait_for(desk.store.path.exists, PATIENCE, "the submission to begin")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err, shlex.quote(err)
    assert process.returncode in (0, 130)


TESTED = """\
import os
import detslurm as det

info = det.get_cluster_info()
with det.core.init() as core:
    for op in core.searcher.operations():
        for step in range(1, op.length + 1):
            core.train.report_training_metrics(step, {"loss": 1 / step})
        core.train.report_validation_metrics(op.length, {info.user_data["reports"]: 0.5})
        if info.user_data["saves"]:
            with core.checkpoint.store_path({"steps_completed": step}) as (path, _):
                (path / "state").write_text(os.environ["DETSLURM_TEST_MODE"])
        op.report_completed(0.5)
"""
SEARCHES = """\
data: {reports: loss, saves: true}
searcher: {name: adaptive_asha, metric: loss, max_trials: 20, max_length: {batches: 900}}
"""


def test_a_search_in_test_mode(desk: Desk) -> None:
    """One batch in one trial says whether it trains, validates and saves, and what is missing."""
    config = desk.project(TESTED)
    lines = [line for line in config.read_text().splitlines() if "searcher" not in line]
    config.write_text("\n".join(lines) + "\n" + SEARCHES)
    good = desk.run("submit", str(config), "--test-mode")
    shown = [line.strip() for line in good.stdout.splitlines()]
    assert shown[:1] + shown[2:4] == ["Created experiment 1", "training: ok, 1 batch",
                                      "validation: ok, loss 0.5"]  # fmt: skip
    assert shown[4].startswith("checkpoint: ok, ")
    assert shown[5] == "The test succeeded. Experiment 1 is archived."
    assert desk.view(1).archived and len(desk.view(1).trials) == 1
    short = ("--test-mode", "--json", "--config")
    bad = desk.run("submit", str(config), *short, "data={reports: los, saves: false}", check=False)
    found = unwrap(bad.stdout)
    assert (bad.returncode, found["state"], found["passed"]) == (1, "COMPLETED", False)
    assert [check["passed"] for check in found["checks"]] == [True, False, False]
    assert "searcher.metric is loss; reported were: los" in found["checks"][1]["text"]
    assert not desk.view(2).archived
    wrong = desk.run("submit", str(config), "-t", "--config", "data={}", check=False)
    assert wrong.returncode == 1 and "KeyError: 'reports'" in wrong.stdout
    assert "The test failed: experiment 3 is ERROR" in wrong.stdout


def test_later_jobs_have_what_the_first_shell_exported(desk: Desk, site: Cluster) -> None:
    """The account and the time limit of the submitting shell's SBATCH_* hold for the job that
    another shell's `activate` queues; where Slurm refuses one, the message says whose it is."""
    config = desk.project("")
    exported = {"SBATCH_ACCOUNT": "lab", "SBATCH_TIMELIMIT": "7", "SBATCH_RESERVATION": ""}
    first = desk.run("submit", str(config), "--paused", "--json", env=exported)
    number = int(unwrap(first.stdout)["experiment_id"])
    old = desk.job(number)
    desk.user.run("scancel", old)
    site.wait_state(old, "CANCELLED")
    desk.run("experiment", "activate", str(number))
    assert desk.job(number) != old
    job = site.job(desk.job(number))
    assert (job["Account"], job["TimeLimit"]) == ("lab", "00:07:00")
    wrong = desk.run("submit", str(config), check=False, env={"SBATCH_RESERVATION": "nowhere"})
    assert "The reservation nowhere comes from SBATCH_RESERVATION" in wrong.stderr


def test_a_held_job_of_a_moved_store_gets_a_successor(desk: Desk, site: Cluster) -> None:
    """It names the old path, where it can't start: `activate` says so, and queues another one."""
    number = desk.submit(desk.project(""), "--paused")
    old, before = desk.store.path, desk.job(number)
    root = str(old.rename(old.with_name("moved")))
    moved = Desk(replace(desk.user, env={**desk.user.env, "DETSLURM_ROOT": root}))
    said = moved.run("experiment", "activate", str(number)).stderr
    assert f"job {before} names {old}, where this store was before it was moved" in said
    moved.wait_for_state(number, "COMPLETED")
    site.wait_state(before, "CANCELLED")
