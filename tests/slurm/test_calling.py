"""Calling Slurm's commands, with scripts in their place."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detslurm._base import contract
from detslurm.slurm import Allocation, JobRequest, SlurmCluster, SlurmError, detect_cluster
from detslurm.slurm import command as calling
from detslurm.slurm.detect import _daemons, sign_of_slurm
from detslurm.slurm.shell_variables import shell_variables
from detslurm.slurm.submit_environment import variables_of
from tests.cluster.processes import alive, killing, started
from tests.cluster.waiting import wait_for

Fake = Callable[[str, str], Path]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """`fake("sbatch", shell)` puts a command of that name first in PATH; it logs its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr("time.sleep", lambda _: None)

    def make(name: str, shell: str) -> Path:
        log = tmp_path / f"{name}.calls"
        path = folder / name
        path.write_text(f'#!/bin/bash\necho "$@" >> {log}\ncalls=$(wc -l < {log})\n{shell}\n')
        path.chmod(0o755)
        return log

    return make


@pytest.fixture
def request_(tmp_path: Path) -> JobRequest:
    return JobRequest(name="x", command=("true",), folder=tmp_path / "jobs", count=2)


BUSY = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@pytest.mark.parametrize(
    "said",
    [
        BUSY,
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
        "RPC rate limit exceeded by uid 1000",
        "Zero Bytes were transmitted or received",
        "sbatch failed (-9)",
    ],
)
def test_a_busy_controller_is_asked_again(said: str) -> None:
    """What passes by itself is no refusal."""
    assert calling.is_transient(said)
    assert "scontrol ping" in calling.advice_for(said)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Batch job submission failed: Invalid account or account/partition", "slurm.account"),
        ("invalid partition specified: nope", "sinfo -s"),
        ("Requested node configuration is not available", "resources.slots_per_trial"),
        ("Job violates accounting/QOS policy (job submit limit, user's size", "trials_per_job"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "slurm.time"),
        ("Memory specification can not be satisfied", 'slurm.sbatch_args: ["--mem=16G"]'),
        ("Batch job submission failed: Requested reservation is invalid", "slurm.sbatch_args"),
        ("Batch job submission failed: Invalid feature specification", "slurm.constraint"),
        ("sbatch: unrecognized option '--memm=3'", "slurm.sbatch_args"),
    ],
)
def test_a_refusal_is_final_and_comes_with_advice(said: str, advice: str) -> None:
    """Asking again would not help; the message says what would."""
    assert not calling.is_transient(said)
    assert advice in calling.advice_for(said, "sbatch")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("QOSMaxWallDurationPerJobLimit", "asks for more than its QOS grants a job (wall time)"),
        ("AssocMaxCpuPerJobLimit", "asks for more than its account grants a job (CPUs)"),
        ("QOSMinGRES", "asks for less than its QOS requires (GPUs): ask for more"),
        ("QOSMaxSubmitJobPerUserLimit", "raise slurm.trials_per_job"),
    ],
)
def test_a_job_that_is_too_large_is_not_one_too_many(code: str, advice: str) -> None:
    """Slurm ends both with the same line; only what stands before it tells them apart."""
    said = (
        f"sbatch: error: {code}\nsbatch: error: Batch job submission failed: Job violates"
        " accounting/QOS policy (job submit limit, user's size and/or time limits)"
    )
    assert advice in calling.advice_for(said, "sbatch")


def test_a_command_that_is_killed_has_refused_nothing(fake: Fake) -> None:
    """Slurm ends a job's processes with it, that of a question about the job, too."""
    fake("squeue", 'if [ $calls -lt 2 ]; then echo "7|7|half a line"; kill -TERM $$; fi; true')
    assert SlurmCluster().query(["7"]) == {}


def test_who_may_not_submit_is_not_told_of_a_job(fake: Fake, request_: JobRequest) -> None:
    """The same words of Slurm mean another's job, or a partition for administrators alone."""
    said = "sbatch: error: Batch job submission failed: Access/permission denied"
    fake("sbatch", f'echo "{said}" >&2; exit 1')
    with pytest.raises(SlurmError, match="RootOnly=YES"):
        SlurmCluster().submit(request_)
    assert calling.advice_for(said) == "The job belongs to another user."


def test_submission_survives_a_busy_controller(fake: Fake, request_: JobRequest) -> None:
    """Two timeouts, then a job id; in between it looks whether the job is queued already."""
    log = fake("sbatch", f'if [ $calls -lt 3 ]; then echo "{BUSY}" >&2; exit 1; fi; echo "42;big"')
    fake("squeue", "true")
    assert SlurmCluster().submit(request_) == "42"
    assert len(log.read_text().splitlines()) == 3


def test_a_submission_that_seemed_to_fail_is_not_repeated(fake: Fake, request_: JobRequest) -> None:
    """The controller timed out but has the job: it is found by its script's unique name."""
    log = fake("sbatch", f'echo "{BUSY}" >&2; exit 1')
    fake(
        "squeue",
        f"echo '7|/other/script.sh'; for s in {request_.folder}/*; do echo \"43|$s\"; done",
    )
    assert SlurmCluster().submit(request_) == "43"
    assert len(log.read_text().splitlines()) == 1


def test_the_queue_is_asked_with_the_retries_of_the_submission(
    fake: Fake, request_: JobRequest
) -> None:
    """While squeue has no answer nobody knows whether there is a job."""
    log = fake("sbatch", f'echo "{BUSY}" >&2; exit 1')
    refusal = f'if [ $calls -lt 8 ]; then echo "{BUSY}" >&2; exit 1; fi'
    fake("squeue", f'{refusal}\nfor s in {request_.folder}/*; do echo "43|$s"; done')
    assert SlurmCluster().submit(request_) == "43"
    assert len(log.read_text().splitlines()) == 1


def test_the_last_try_may_have_queued_the_job(
    fake: Fake, request_: JobRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not tried again, but found all the same; without an answer the first error stands."""
    monkeypatch.setattr("detslurm.slurm.sbatch.SUBMIT_PATIENCE", 0)
    fake("sbatch", f'echo "{BUSY}" >&2; exit 1')
    fake("squeue", f'for s in {request_.folder}/*; do echo "43|$s"; done')
    assert SlurmCluster().submit(request_) == "43"
    fake("squeue", 'echo "slurm_load_jobs error: Unexpected message received" >&2; exit 1')
    with pytest.raises(SlurmError, match="Socket timed out"):
        SlurmCluster().submit(request_)


def test_the_answer_of_a_wrapped_sbatch(fake: Fake, request_: JobRequest) -> None:
    """Sites print words of their own around the id; without an id the job is looked for."""
    fake("sbatch", "echo '--> 12 nodes are free'; echo '42;big'; echo '9 % left'")
    assert SlurmCluster().submit(request_) == "42"
    fake("sbatch", "true")
    fake("squeue", f'for s in {request_.folder}/*; do echo "43|$s"; done')
    assert SlurmCluster().submit(request_) == "43"
    fake("sbatch", "echo 43; echo 1200")  # the second is what is left of a budget
    assert SlurmCluster().submit(request_) == "43"
    fake("sbatch", "echo 'closed on Fridays'")
    fake("squeue", "true")
    scripts = set(request_.folder.iterdir())
    with pytest.raises(SlurmError, match="squeue shows none of its script: closed on Fridays"):
        SlurmCluster().submit(request_)
    assert set(request_.folder.iterdir()) == scripts


def test_a_refused_submission_leaves_nothing(fake: Fake, request_: JobRequest) -> None:
    """One call, one error, no script."""
    log = fake("sbatch", 'echo "sbatch: error: invalid partition specified: nope" >&2; exit 1')
    with pytest.raises(SlurmError, match="sinfo -s"):
        SlurmCluster().submit(request_)
    assert len(log.read_text().splitlines()) == 1
    assert list(request_.folder.iterdir()) == []


def test_an_array_of_any_size_is_one_call_and_one_file(fake: Fake, request_: JobRequest) -> None:
    """O(1) files of ours."""
    log = fake("sbatch", "echo 44")
    SlurmCluster().submit(request_.with_changes(count=1000, throttle=16))
    assert len(log.read_text().splitlines()) == 1
    (script,) = request_.folder.iterdir()
    assert "#SBATCH --array=0-999%16\n" in script.read_text()


def test_one_squeue_a_query(fake: Fake) -> None:
    """However many jobs are asked about."""
    log = fake("squeue", "true")
    SlurmCluster().query([f"{job}_{index}" for job in range(1, 50) for index in range(50)])
    assert len(log.read_text().splitlines()) == 1


def test_sbatch_sees_no_overruling_variables(
    fake: Fake, request_: JobRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SBATCH_* would win over the script, and SLURM_* of an outer job would leak into the new."""
    log = fake("sbatch", f"env > {request_.folder}/env; echo 45")

    def seen(**fields: Any) -> set[str]:
        SlurmCluster().submit(replace(request_, variables=shell_variables(), **fields))
        return set((request_.folder / "env").read_text().splitlines())

    for name in ("SBATCH_PARTITION", "SBATCH_ARRAY_INX", "SBATCH_CLUSTERS", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.setenv(name, "3")
    monkeypatch.setenv("SBATCH_RESERVATION", "3")
    found = {line for line in seen(partition="main") if line.startswith(("SBATCH_", "SLURM_A"))}
    assert found == {"SBATCH_RESERVATION=3"}
    monkeypatch.setenv("SBATCH_PARTITION", "main")  # which the configuration has taken over
    assert "SBATCH_PARTITION=main" in seen(partition="main")
    assert "SBATCH_PARTITION=main" not in seen()
    monkeypatch.setenv("SBATCH_EXPORT", "ALL,TOKEN=hush")
    assert "SBATCH_EXPORT=ALL,TOKEN=hush" in seen()
    assert "hush" not in "".join(shell_variables()), "others may read what is recorded"
    assert log.exists()


def test_later_jobs_have_the_variables_of_the_first_submission(
    fake: Fake, request_: JobRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the later shell exports, and though a fact has kept them; fields come before them.
    A refusal names the value and its origin."""
    fake("sbatch", "echo sbatch: error: Invalid account or account/partition; exit 1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    monkeypatch.setenv("SBATCH_QOS", "slow")
    first = JobRequest(name="x", command=("true",), folder=request_.folder)
    monkeypatch.setenv("SBATCH_ACCOUNT", "other")
    monkeypatch.setenv("SBATCH_EXCLUSIVE", "1")
    later = JobRequest.from_dict(json.loads(json.dumps(first.to_dict())))
    assert variables_of(later) == {"SBATCH_ACCOUNT": "lab", "SBATCH_QOS": "slow"}
    assert variables_of(later.with_changes(qos="fast")) == {"SBATCH_ACCOUNT": "lab"}
    for asked, named in (
        (later, "The account lab comes from SBATCH_ACCOUNT of the shell that submitted"),
        (later.with_changes(account="mine"), "The account mine comes from slurm.account"),
        (replace(first, variables=()), "The experiment names no account"),
        (replace(first, variables=(), sbatch_args=("-A x",)), "x comes from slurm.sbatch_args"),
    ):
        with pytest.raises(SlurmError, match=named):
            SlurmCluster().submit(asked)
        with pytest.raises(SlurmError, match=named):
            SlurmCluster().check(asked)


def test_a_job_inherits_no_other_jobs_identity() -> None:
    """Nor that of a rank in it; where the cluster is belongs to none."""
    kept = {"SLURM_CONF": "/x", "HOME": "/h", "DETSLURM_ROOT": "/r", "SLURM": "/opt/slurm"}
    names = ("SLURM_JOB_ID", "SLURMD_NODENAME", "PMI_RANK", "PMIX_RANK", "OMPI_X", "DET_MASTER")
    assert contract.inheritable({**kept, **dict.fromkeys(names, "1")}, "DET_") == kept


def test_a_job_inherits_how_the_site_has_set_up_mpi() -> None:
    """From a login node and from a batch script; what mpirun tells its ranks is theirs."""
    site = {"OMPI_MCA_btl": "^openib", "PMIX_MCA_gds": "hash"}
    login = {**site, "SLURM_MPI_TYPE": "pmix"}
    assert contract.inheritable(login) == login
    assert contract.inheritable({**login, "SLURM_JOB_ID": "7"}) == site
    for rank in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"):
        assert contract.inheritable({**login, "SLURM_JOB_ID": "7", rank: "0"}) == {}


def test_without_slurm_the_local_cluster_is_found(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """auto asks for sbatch and a configuration; names that don't exist are refused."""
    fake("sbatch", "true")
    conf, usual = tmp_path / "slurm.conf", tmp_path / "usual.conf"
    monkeypatch.setattr("detslurm.slurm.detect._CONFIGURATIONS", (str(usual),))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    assert detect_cluster(root=tmp_path).name == "local"
    usual.touch()  # of a Slurm that the variable, left from another one, does not speak of
    assert detect_cluster(root=tmp_path).name == "slurm"
    usual.unlink()
    conf.touch()
    assert detect_cluster(root=tmp_path).name == "slurm"
    assert detect_cluster("local", root=tmp_path).name == "local"
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SlurmError, match=r"slurm\.conf.*sbatch is not in PATH"):
        detect_cluster(root=tmp_path)
    assert detect_cluster("local", root=tmp_path).name == "local"
    conf.unlink()
    monkeypatch.setattr("detslurm.slurm.detect._daemons", lambda: iter(["slurmd"]))
    with pytest.raises(SlurmError, match="slurmd runs here"):
        detect_cluster(root=tmp_path)
    monkeypatch.setattr("detslurm.slurm.detect._daemons", lambda: iter([]))
    assert detect_cluster(root=tmp_path).name == "local"
    with pytest.raises(SlurmError, match="auto, slurm or local"):
        detect_cluster("pbs")
    with pytest.raises(SlurmError, match="--cluster local"):
        SlurmCluster().query(["1"])


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Unable to contact slurm controller (connect failure)", "slurm"),
        ("Socket timed out on send/recv operation", "slurm"),
        ("Could not establish a configuration source", "local"),
    ],
)
def test_a_busy_controller_is_a_cluster(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, name: str
) -> None:
    """Where only Slurm itself knows its configuration; else jobs would run on the login node."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr("detslurm.slurm.detect._CONFIGURATIONS", ())
    fake("sbatch", "true")
    fake("scontrol", f'echo "{said}" >&2; exit 1')
    assert detect_cluster(root=tmp_path).name == name


def test_a_configuration_that_cannot_be_examined_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A name too long stands for a folder closed to us, which none is to root."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("SLURM_CONF", f"/{'x' * 300}")
    (tmp_path / "slurm.conf").touch()
    monkeypatch.setattr("detslurm.slurm.detect._CONFIGURATIONS", (str(tmp_path / "slurm.conf"),))
    assert sign_of_slurm() == str(tmp_path / "slurm.conf")


def test_processes_are_named_by_bytes(tmp_path: Path) -> None:
    """One whose name is no text hides no daemon, nor is it an error."""
    for pid, name in enumerate([b"\xff\xfe", b"sackd", b"slurmd2"]):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_bytes(name + b"\n")
    assert list(_daemons(tmp_path)) == ["sackd"]


def test_the_allocation_is_read_from_the_environment() -> None:
    """An array element on three nodes, restarted twice."""
    env = {
        "SLURM_JOB_ID": "58",
        "SLURM_ARRAY_JOB_ID": "56",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_JOB_NODELIST": "n[1-2],x7",
        "SLURM_NODEID": "2",
        "CUDA_VISIBLE_DEVICES": "0,GPU-a1",
        "SLURM_GPUS": "fake:6",
    }
    found = Allocation.from_environment(env)
    assert found is not None
    assert (found.ref, found.job_id, found.restart_count) == ("56_1", "58", 2)
    assert (found.nodes, found.node_rank) == (("n1", "n2", "x7"), 2)
    assert found.slot_ids == ("0", "GPU-a1")
    assert "--gres=gpu:2" in found.step_command(["true"])
    plain = Allocation.from_environment({"SLURM_JOB_ID": "58", "SLURM_JOB_NODELIST": "n1"})
    assert plain is not None
    assert (plain.ref, plain.slot_ids) == ("58", ())
    assert Allocation.from_environment({}) is None


def test_a_step_has_all_of_its_node_and_its_tasks_the_jobs_cpus_per_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What sbatch's own options leave in the environment would be options of srun, too."""
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("SLURM_TRES_BIND", "gres/gpu:per_task:4")
    monkeypatch.setenv("SRUN_CONTAINER", "/none")
    monkeypatch.setenv("SLURM_HOSTFILE", "/none")
    command = Allocation("slurm", "5", ("n1",)).step_command(["true"])
    removed = {command[i + 1] for i, word in enumerate(command) if word == "-u"}
    assert removed >= {"SLURM_CPUS_PER_TASK", "SLURM_TRES_BIND", "SRUN_CONTAINER", "SLURM_HOSTFILE"}
    assert "--export=ALL,SLURM_CPUS_PER_TASK=8" in command
    ranks = Allocation("slurm", "5", ("n1",)).step_command(["true"], per_node=3)
    assert "--export=ALL,SLURM_CPUS_PER_TASK=2" in ranks  # a node's ranks share what a trial has


def test_unequal_gpus_are_an_error_with_a_remedy() -> None:
    """Slurm cannot start a step on 3 + 1 GPUs, and says so badly."""
    env = {
        "SLURM_JOB_ID": "5",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_GPUS": "4",
        "CUDA_VISIBLE_DEVICES": "0,1,2",
    }
    found = Allocation.from_environment(env)
    assert found is not None
    with pytest.raises(SlurmError, match="slots_per_node"):
        found.step_command(["true"])


def test_a_local_step_dies_with_its_runner(tmp_path: Path) -> None:
    """The kernel sees to it, whatever kills the runner."""
    code = (
        "import os, subprocess, sys, time; from detslurm.slurm import Allocation;"
        "a = Allocation('local', '1', ('here',));"
        "p = subprocess.Popen(a.step_command(['sh', '-c', 'echo $$; exec sleep 3600']));"
        "time.sleep(3600)"
    )
    with started([sys.executable, "-c", code], stdout=subprocess.PIPE) as runner:
        assert runner.stdout is not None
        step = int(runner.stdout.readline())
        with killing(step):
            runner.kill()
            wait_for(lambda: not alive(step), 120, "the end of the step")


def test_importing_the_seam_is_light() -> None:
    """A runner on a thousand nodes pays for none of these."""
    heavy = ["submitit", "yaml", "subprocess", "msgspec", "numpy", "asyncio", "socketserver"]
    code = f"import sys, detslurm.slurm; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


FINISHED = "4711_0: Job has already finished"


@pytest.mark.parametrize(
    ("said", "refused"),
    [(f"{FINISHED}\n4711_[3-9]: No error", False), (FINISHED, True), ("4711: denied", True)],
)
def test_an_array_of_which_some_has_ended_is_changed(fake: Fake, said: str, refused: bool) -> None:
    """scontrol fails then, though what waits was changed."""
    fake("scontrol", f'echo "{said}" >&2; exit 1')
    with pytest.raises(SlurmError) if refused else contextlib.nullcontext():
        SlurmCluster().update("4711", Nice=5)


def test_rules_that_were_asked_for_in_vain_are_asked_for_again(fake: Fake) -> None:
    """A submission that is refused waits for no answer; the next one has the same client."""
    log = fake("scontrol", '[ "$calls" -gt 2 ] || exec sleep 60; echo "ClusterName = c"')
    fake("sinfo", ":")
    cluster = SlurmCluster()
    with contextlib.suppress(ValueError), cluster.expecting_limits():
        wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 2, 60, "two calls")
        raise ValueError("what was submitted is wrong")
    assert cluster.limits().cluster == "c"
    calls = log.read_text()
    with cluster.expecting_limits():
        assert cluster.limits().cluster == "c"
    assert log.read_text() == calls


def test_a_job_is_no_rank_of_the_launcher_that_its_shell_is_a_worker_of() -> None:
    """Nor has it the login node's devices; a user's own variables pass."""
    own = {"PATH": "/bin", "CONDA_PREFIX": "/c", "NCCL_DEBUG": "INFO", "TRITON_CACHE_DIR": "/t"}
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "PET_NNODES", "TORCHELASTIC_RUN_ID", "GROUP_RANK")
    shell = {**own, **dict.fromkeys((*names, "CUDA_VISIBLE_DEVICES"), "1")}
    assert contract.inheritable(shell) == own


def test_compilers_of_a_job_share_no_cache_with_the_job_that_submits_it() -> None:
    """But a runner's jobs are those of its experiment, and have what the first had."""
    job = {"SLURM_JOB_ID": "7", "TRITON_CACHE_DIR": "/tmp/7", "TORCHINDUCTOR_CACHE_DIR": "/tmp/7"}
    assert contract.inheritable(job) == {}
    found = contract.inheritable({**job, contract.RUNNER: "1"})
    assert set(found) == {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"}
