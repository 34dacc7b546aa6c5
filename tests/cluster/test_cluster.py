"""The suite's own cluster is a real one, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterSpec, User, ports, wait_for
from tests.cluster import processes as proc

REPOSITORY = Path(__file__).resolve().parents[2]
Login = Callable[..., User]
PATIENCE = 180.0
"""Nothing here takes that long, but on a machine that does much else."""


def sbatch(user: User, script: str, *options: str) -> str:
    """Submit `script` as `user`; the job's id."""
    argv = ("sbatch", "--parsable", "--output=%A_%a.out", "--mem=100", *options)
    return user.run(*argv, input=f"#!/bin/bash\n{script}\n").stdout.strip()


def living(root: Path) -> list[int]:
    """Processes that were started for the cluster in `root` (its daemons and jobs)."""
    needle = str(root).encode()
    return [pid for pid in proc.pids() if proc.alive(pid) and _mentions(pid, needle)]


def _mentions(pid: int, needle: bytes) -> bool:
    if pid == os.getpid():
        return False
    try:
        texts = [(proc.PROC / str(pid) / name).read_bytes() for name in ("cmdline", "environ")]
    except OSError:
        return False
    return any(needle in text for text in texts)


@pytest.mark.skipif(os.geteuid() != 0, reason="ordinary users besides oneself: only root can act")
def test_job_of_an_ordinary_user_runs_as_that_user(slurm: Cluster, alice: User) -> None:
    """A batch job runs under the uid of its submitter and is accounted for."""
    job = sbatch(alice, "id -un; echo store=$DETSLURM_ROOT")
    slurm.wait_state(job, "COMPLETED")
    assert alice.cwd is not None
    [output] = alice.cwd.glob(f"{job}_*.out")
    assert output.read_text() == f"alice\nstore={alice.env['DETSLURM_ROOT']}\n"
    rows = ("sacct", "-nXP", "-j", job, "-o", "user,state")
    wait_for(
        lambda: "alice|COMPLETED" in alice.run(*rows).stdout, PATIENCE, "row of the job in sacct"
    )


def test_gpus_are_visible(alice: User) -> None:
    """A job sees as many GPUs as it asked for, each job its own."""
    show = ("srun", "--mem=100", "--gres=gpu:fake:3", "printenv", "CUDA_VISIBLE_DEVICES")
    assert alice.run(*show).stdout == "0,1,2\n"


def test_four_nodes_with_declared_cpus(alice: User) -> None:
    """There are four nodes, and one step can span them with 8 tasks on each."""
    argv = ("srun", "-N4", "--ntasks-per-node=8", "--mem=0", "printenv", "SLURMD_NODENAME")
    names = alice.run(*argv).stdout.split()
    assert sorted(names) == sorted(["n1", "n2", "n3", "n4"] * 8)


def test_high_preempts_low_and_low_is_requeued(slurm: Cluster, alice: User) -> None:
    """The step of the job in `low` gets SIGTERM at once; when it runs again, it knows of it."""
    step = "trap 'echo termed; exit 1' TERM; echo up $SLURM_RESTART_COUNT; sleep 300 & wait"
    script = f'srun bash -c "{step.replace("$", chr(92) + "$")}"; scontrol requeue $SLURM_JOB_ID'
    options = ("--exclusive", "-N4", "--open-mode=append")
    low = sbatch(alice, script, "-p", "low", *options)
    assert alice.cwd is not None
    output = alice.cwd / f"{low}_4294967294.out"
    wait_for(
        lambda: output.exists() and output.read_text().count("up") == 4, PATIENCE, "four tasks"
    )
    high = sbatch(alice, "true", "-p", "high", "-N4")
    slurm.wait_state(high, "COMPLETED")
    assert "termed" in output.read_text()  # srun may be gone before it has passed on all four
    again = slurm.wait_state(low, "RUNNING")
    assert again["Restarts"] == "1"
    wait_for(lambda: output.read_text().count("up 1") == 4, PATIENCE, "tasks of the second run")


def test_a_node_without_power_costs_the_job_a_requeue(slurm: Cluster, alice: User) -> None:
    """kill_node leaves no process of the node; Slurm sees NODE_FAIL and runs the job elsewhere."""
    job = sbatch(alice, "trap '' TERM; setsid sleep 987 & sleep 987", "-p", "main")
    node = slurm.wait_state(job, "RUNNING")["NodeList"]
    wait_for(lambda: len(_sleepers(slurm, job)) == 2, PATIENCE, "processes of the job")
    slurm.kill_node(node)
    assert _sleepers(slurm, job) == []
    assert slurm.daemons.pid(f"slurmd.{node}") is None
    wait_for(lambda: slurm.job(job).get("Restarts") == "1", PATIENCE, "requeue")
    assert slurm.wait_state(job, "RUNNING")["NodeList"] != node
    slurm.boot_node(node)
    history = ("sacct", "-DnXP", "-j", job, "-o", "state")
    wait_for(lambda: slurm.command(*history).startswith("NODE_FAIL"), PATIENCE, "the end in sacct")
    for pid in _sleepers(slurm, job):  # which no TERM would end
        proc.send(pid, signal.SIGKILL)


def _sleepers(cluster: Cluster, job: str) -> list[int]:
    wanted = {"SLURM_JOB_ID": job, "SLURM_CONF": str(cluster.layout.slurm_conf)}
    return [
        pid
        for pid in proc.pids()
        if proc.executable(pid) == "sleep" and wanted.items() <= proc.environment(pid).items()
    ]


def test_two_clusters_side_by_side(
    slurm: Cluster, slurm_strange: Cluster, alice: User, login: Login
) -> None:
    """Each cluster has ports, queue and nodes of its own; the environment chooses."""
    other = login(slurm_strange, "alice")
    show = ("scontrol", "show", "config")
    assert "ClusterName             = suite" in alice.run(*show).stdout
    assert "ClusterName             = strange" in other.run(*show).stdout
    assert set(range(slurm.ports.base, slurm.ports.base + 7)).isdisjoint(
        range(slurm_strange.ports.base, slurm_strange.ports.base + 7)
    )
    job = sbatch(other, "sleep 300")
    slurm_strange.wait_state(job, "RUNNING")
    assert job in other.run("squeue", "-h", "-o", "%A").stdout.split()
    assert other.run("sacct", check=False).returncode != 0, "no accounting there"


def test_policies_can_change_for_a_while(slurm_strange: Cluster) -> None:
    """`reshaped` changes a policy of the running cluster and changes it back."""
    show = ("scontrol", "show", "config")
    assert "preempt_send_user_signal" in slurm_strange.command(*show)
    with slurm_strange.reshaped(send_user_signal=False):
        assert "preempt_send_user_signal" not in slurm_strange.command(*show)
    assert "preempt_send_user_signal" in slurm_strange.command(*show)


@pytest.mark.usefixtures("slurm_programs")
def test_down_leaves_nothing() -> None:
    """After `down` there is no process, no folder and no shared memory of the cluster."""
    spec = ClusterSpec(name="brief", nodes=2, accounting=False)
    with Cluster(spec) as cluster:
        root = cluster.root
        user = cluster.user("alice")
        user.run("sbatch", "--output=/dev/null", "--wrap", "setsid sleep 986 & sleep 986")
        wait_for(lambda: cluster.command("squeue", "-h", "-t", "R"), PATIENCE, "running job")
        assert len(living(root)) >= 5
    wait_for(lambda: not living(root), PATIENCE, "end of all processes")
    assert not root.exists()


@pytest.mark.usefixtures("slurm_programs")
def test_a_port_that_is_taken_while_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process of the machine may take one that was found free; others are there."""
    taken: list[socket.socket] = []
    find = ports._free

    def free(port: int) -> bool:
        if taken or not find(port):
            return find(port)
        taken.append(socket.socket())
        taken[0].bind(("0.0.0.0", port))
        return True

    monkeypatch.setattr(ports, "_free", free)
    with Cluster(ClusterSpec(name="late", nodes=1, accounting=False)) as cluster:
        assert cluster.ports.base != taken[0].getsockname()[1]
        assert "UP" in cluster.command("scontrol", "ping")
        root = cluster.root
    taken[0].close()
    assert not root.exists()


@pytest.mark.usefixtures("slurm_programs")
def test_a_killed_owner_takes_its_cluster_along() -> None:
    """kill -9 of the process that started a cluster leaves nothing either."""
    argv = [sys.executable, "-m", "tests.cluster", "run", "--no-accounting", "--nodes=1"]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        root = Path(owner.stdout.readline().partition("=")[2].strip()).parents[1]
        assert (root / "cluster.json").exists()
        owner.send_signal(signal.SIGKILL)
    wait_for(lambda: not root.exists(), PATIENCE, "removal of the folder")
    wait_for(lambda: not living(root), PATIENCE, "end of all processes")
