"""The nodes and slots that a launcher has to fill, and the meeting point of their processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from detslurm._base import contract
from detslurm._base.info import get_cluster_info
from detslurm.exec.unmanaged_job import UnmanagedJob, join
from detslurm.launch.arguments import UsageError
from detslurm.slurm import Allocation, step_of, visible_gpus
from detslurm.store import StoreError


@dataclass(frozen=True)
class Nodes:
    """The nodes of this run as this one sees them."""

    addrs: tuple[str, ...]
    rank: int
    slots: int
    port: int | None = None

    @property
    def chief(self) -> str:
        """The address of the first node."""
        return self.addrs[0]

    @property
    def is_multi_node(self) -> bool:
        return len(self.addrs) > 1

    def with_slots(self, count: int) -> Nodes:
        """The same with another number of slots a node, also for the workers to be started."""
        met = json.loads(os.environ[contract.RENDEZVOUS])
        met["container_slot_counts"] = [count] * len(self.addrs)
        os.environ[contract.RENDEZVOUS] = json.dumps(met)
        os.environ[contract.SLOT_IDS] = json.dumps(list(range(count)))
        return replace(self, slots=count)


def join_run(argv: Sequence[str]) -> UnmanagedJob | None:
    """Let this process be in a run: the run that its agent started it for, or a run of its own.

    Its own it gets, and the environment for it, in a job that was not submitted through detslurm.
    None where it is not recorded: by the user's choice, or because the store can't be used. Raises
    `UsageError` where several nodes need the record to meet, where srun started several launchers
    on a node, or where no srun started any, so that this machine alone would train.
    """
    env = os.environ
    contract.drop_inherited_run(env)
    if contract.MASTER in env or "SLURM_JOB_ID" not in env:
        return None
    _need_srun(env)
    tasks, nodes = env.get("SLURM_STEP_NUM_TASKS", "1"), env.get("SLURM_STEP_NUM_NODES", "1")
    if tasks != nodes:
        raise UsageError(
            f"error: srun started {tasks} launchers on {nodes} nodes; one launcher starts all"
            " workers of its node: add --ntasks-per-node=1 to srun"
        )
    why = f"{contract.TRACK}=0"
    try:
        unmanaged = join(argv, launcher=True)
        if unmanaged is not None:
            env.update(unmanaged.environment(slots=_slots_here()))
            return unmanaged
    except (StoreError, OSError) as err:
        why = f"this run is not recorded: {err}"
        print(f"detslurm: {why}", file=sys.stderr, flush=True)
        env[contract.TRACK] = "0"  # else each worker would try again, and some might be recorded
    if nodes != "1":  # each node's workers would train by themselves
        raise UsageError(f"error: {why}, and without its record {nodes} nodes can't meet")
    return None


def _need_srun(env: Mapping[str, str]) -> None:
    allocation = Allocation.from_environment(env)
    if allocation is None or allocation.cluster != "slurm" or step_of(env) is not None:
        return
    job, nodes = allocation.job_id, allocation.nodes
    remedy = "start it with `srun --ntasks-per-node=1`"
    if not {env.get("SLURMD_NODENAME"), *_own_names()} & {*nodes}:
        raise UsageError(
            f"error: this shell is not on a node of job {job}, and the code would train on"
            f" {os.uname().nodename}: {remedy}"
        )
    if len(nodes) > 1:
        raise UsageError(
            f"error: job {job} has {len(nodes)} nodes, and without srun one of them would train:"
            f" {remedy}, or on one node alone with `srun --nodes=1 --ntasks=1`"
        )


def _own_names() -> tuple[str, str]:
    name = os.uname().nodename
    return name, name.partition(".")[0]


def nodes_here() -> Nodes:
    """The nodes of this task, by its environment; where nothing is recorded this machine alone."""
    info = get_cluster_info()
    if info is None:
        return Nodes(("127.0.0.1",), 0, _slots_here())
    port = os.environ.get(contract.RENDEZVOUS_PORT)
    return Nodes(
        addrs=tuple(info.container_addrs),
        rank=info.container_rank,
        slots=len(info.slot_ids),
        port=int(port) if port else None,
    )


def _slots_here() -> int:
    return len(visible_gpus(os.environ)) or 1


def threads_each(workers: int) -> int:
    """How many threads each of so many workers may have: its share of this node's CPUs."""
    bound = len(os.sched_getaffinity(0))
    given = os.environ.get("SLURM_CPUS_ON_NODE", "")
    return max((min(bound, int(given)) if given.isdigit() else bound) // workers, 1)
