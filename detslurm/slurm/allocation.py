"""The allocation that this process runs in, read from its environment alone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from detslurm._base import contract
from detslurm._base.quantities import counted
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.hostlist import expand_hostlist

SIGNAL_EARLY: Final = 90
"""Seconds by which the signal of --signal may come before its time: by Slurm up to a minute, and
clocks differ."""

SLURM_OUTPUT_FD: Final = 99
"""Where a batch script keeps the output that Slurm opened for it, and that slurmstepd writes to."""

# Step numbers from here on are Slurm's own: the batch script, an interactive step.
_RESERVED_STEPS = 0xFFFFFFF0

# srun takes variables that sbatch leaves in a job's environment as options of the step. A node
# agent wants all of the job on its node, whatever options the job had, hence none of these.
_STEP_TRAPS = (
    "SLURM_CPUS_PER_TASK",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_MEM_PER_NODE",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_CPUS_PER_GPU",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_TRES",
    "SLURM_TRES_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_TRES_BIND",
    "SLURM_GRES",
    "SLURM_STEP_GRES",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_WHOLE",
    "SLURM_DISTRIBUTION",
    "SLURM_HINT",
    "SLURM_THREADS_PER_CORE",
    "SLURM_EXPORT_ENV",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_LABELIO",
    "SLURM_UNBUFFEREDIO",
    "SLURM_MULTI_PROG",
    "SLURM_TIMELIMIT",
    "SLURM_CPU_BIND",
    "SLURM_HOSTFILE",
)
_STEP_TRAP = "SRUN_"  # all that begin with it are srun's options

# The fences of Slurm's PMIx that carry no data go up a tree by default, and the other nodes do not
# wait for its root then (seen with 22.05): a rank can be out of MPI_Init and send while one of the
# first node is still in there, which kills Open MPI (its issue 12495). In a ring all wait for all.
_FENCE = "SLURM_PMIX_FENCE"


class Allocation(NamedTuple):
    """The resources of one job (or array element): its place and its names."""

    cluster: str  # slurm or local
    job_id: str
    nodes: tuple[str, ...]
    array_job_id: str | None = None
    array_task_id: int | None = None
    restart_count: int = 0
    partition: str = ""
    end_time: float | None = None  # unix seconds at which the time limit strikes, where known
    slot_ids: tuple[str, ...] = ()  # GPUs of this node, as CUDA_VISIBLE_DEVICES names them
    node_rank: int = 0  # which of `nodes` this process is on
    gpus_of_job: int | None = None  # where Slurm was asked for GPUs per job
    start_time: float | None = None  # unix seconds, where known

    @property
    def ref(self) -> str:
        """The job to requeue: exactly this element of its array, or the plain job."""
        if self.array_job_id is None:
            return self.job_id
        return f"{self.array_job_id}_{self.array_task_id}"

    @property
    def node_count(self) -> int:
        """How many nodes the job has."""
        return len(self.nodes)

    def seconds_left(self) -> float | None:
        """Until the time limit that the job began with, where it is known."""
        return None if self.end_time is None else self.end_time - time.time()

    def end_reason(self, output: Path, since: int) -> str | None:
        """After SIGTERM: cancelled, preempted, time_limit, requeued or node_failed; None: unknown.

        `output` is what Slurm writes to, and had `since` bytes when this process began.
        """
        from detslurm.slurm.end_reason import end_reason

        return end_reason(self.job_id if self.cluster == "slurm" else self.ref, output, since)

    def _gpus_per_node(self) -> list[str]:
        """A step of a job with --gpus on several nodes must state how many each node gives.

        Without that, srun distributes the job's GPUs again, and unequally.
        """
        if self.gpus_of_job is None or self.node_count == 1:
            return []
        each = len(self.slot_ids)
        if each * self.node_count != self.gpus_of_job:
            raise SlurmError(
                f"Slurm gave this node {each} of {counted(self.gpus_of_job, 'GPU')}"
                f" on {self.node_count} nodes",
                "Every node needs the same number: set slurm.slots_per_node.",
            )
        return [f"--gres=gpu:{each}"]

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Allocation | None:
        """The allocation around this process, or None outside of any job."""
        env = os.environ if environ is None else environ
        if contract.LOCAL_JOB_ID in env:
            return _local(env)
        if "SLURM_JOB_ID" in env:
            return _slurm(env)
        return None

    def record(self) -> dict[str, Any]:
        """The job, as a run's claim names it."""
        return {
            "cluster": self.cluster,
            "job_id": self.job_id,
            "array_job_id": self.array_job_id,
            "array_task_id": self.array_task_id,
            "ref": self.ref,
            "restart_count": self.restart_count,
            "nodes": list(self.nodes),
            **({} if self.start_time is None else {"started": self.start_time}),
        }

    def step_command(
        self, argv: list[str], *, mpi: str | None = None, per_node: int = 1
    ) -> list[str]:
        """The command of one step that runs argv `per_node` times on every node of the job."""
        if self.cluster == "local":
            return die_with_parent(argv)
        # Code sizes its data loaders by it. As srun's --export it is for the tasks, not for srun.
        cpus = cpus_per_task(os.environ, per_node)
        return [
            "env",
            *(word for name in _step_traps() for word in ("-u", name)),
            *([] if _FENCE in os.environ else [f"{_FENCE}=ring"]),
            "srun",
            "--quiet",
            f"--nodes={self.node_count}",
            f"--ntasks={self.node_count * per_node}",
            f"--ntasks-per-node={per_node}",
            "--overlap",
            ",".join(["--export=ALL", *(f"{name}={value}" for name, value in cpus.items())]),
            "--cpu-bind=none",
            "--kill-on-bad-exit=1",
            "--wait=0",
            *self._gpus_per_node(),
            *([f"--mpi={mpi}"] if mpi else []),
            "--",
            *argv,
        ]


def _step_traps() -> list[str]:
    return [name for name in os.environ if name in _STEP_TRAPS or name.startswith(_STEP_TRAP)]


def cpus_per_task(job: Mapping[str, str], tasks: int) -> dict[str, str]:
    """Each task's share of the CPUs that sbatch was asked for; nothing of others."""
    asked = job.get("SLURM_CPUS_PER_TASK", "")
    return {"SLURM_CPUS_PER_TASK": str(max(int(asked) // tasks, 1))} if asked.isdigit() else {}


def die_with_parent(argv: list[str]) -> list[str]:
    """argv such that the kernel kills it as soon as the process that starts it is gone."""
    import sys

    # -S -I: these few lines read neither site-packages nor the user's environment.
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]


_DIE_WITH_PARENT = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(sys.argv[1]): os._exit(137)
try: os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error: sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


def _slurm(env: Mapping[str, str]) -> Allocation:
    nodelist = env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", "")
    array = env.get("SLURM_ARRAY_JOB_ID")
    return Allocation(
        cluster="slurm",
        job_id=env["SLURM_JOB_ID"],
        nodes=tuple(expand_hostlist(nodelist)) or (_hostname(env),),
        array_job_id=array,
        array_task_id=int(env["SLURM_ARRAY_TASK_ID"]) if array else None,
        restart_count=int(env.get("SLURM_RESTART_COUNT") or 0),
        partition=env.get("SLURM_JOB_PARTITION", ""),
        end_time=_number(env.get("SLURM_JOB_END_TIME")),
        slot_ids=visible_gpus(env),
        node_rank=int(env.get("SLURM_NODEID") or 0),
        gpus_of_job=_gpu_total(env.get("SLURM_GPUS")),
        start_time=_number(env.get("SLURM_JOB_START_TIME")),
    )


def step_of(env: Mapping[str, str]) -> str | None:
    """The number of the step around this process; None in a batch script.

    Since 26.05 Slurm sets the variable there, too: to a reserved number.
    """
    step = env.get("SLURM_STEP_ID", "")
    return step if step.isdigit() and int(step) < _RESERVED_STEPS else None


def _gpu_total(text: str | None) -> int | None:
    """4 of `4`, `a100:4` and `a100:3,v100:1`."""
    counts = [item.rpartition(":")[2] for item in (text or "").split(",")]
    return sum(map(int, counts)) if all(map(str.isdigit, counts)) else None


def _local(env: Mapping[str, str]) -> Allocation:
    task = env.get(contract.LOCAL_TASK_ID) or None
    job = env[contract.LOCAL_JOB_ID]
    return Allocation(
        cluster="local",
        job_id=job,
        nodes=(_hostname(env),),
        array_job_id=job if task else None,
        array_task_id=int(task) if task else None,
        restart_count=int(env.get(contract.LOCAL_RESTART_COUNT) or 0),
        partition="local",
        end_time=_number(env.get(contract.LOCAL_END_TIME)),
        slot_ids=visible_gpus(env),
    )


def visible_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that this process may use, as it must name them; empty where none were given."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        value = env.get(name, "").strip()
        if value and value not in ("NoDevFiles", "-1"):
            return tuple(item.strip() for item in value.split(",") if item.strip())
    return ()


def _hostname(env: Mapping[str, str]) -> str:
    return env.get("SLURMD_NODENAME") or os.uname().nodename


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if time.time() - 1e9 < value < time.time() + 1e9 else None
