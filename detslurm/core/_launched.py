"""Variables that launchers leave in a process's environment: ranks, sizes, ports."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from detslurm._base import contract
from detslurm.core.transports.choose import RankTopology
from detslurm.slurm.hostlist import counts_by_node, hosts_in

PUB_PORT, PULL_PORT = 12360, 12376

# The variables with rank, size, local rank, local size, the node's number and that of nodes.
TORCH = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE"),
)
DEEPSPEED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


class NotLaunched(KeyError, ValueError):
    """No launcher has started this process; a `KeyError`, for scripts that try and go on alone."""

    __str__ = Exception.__str__  # KeyError's shows quotes instead of a sentence


class Numbers:
    """Numbers in the environment; for a missing one `NotLaunched` names its launcher."""

    def __init__(self, setter: str) -> None:
        self._setter = setter

    def __contains__(self, name: str) -> bool:
        return name in os.environ

    def __getitem__(self, name: str) -> int:
        try:
            return int(os.environ[name])
        except (KeyError, ValueError):
            raise NotLaunched(
                f"{name} is not in the environment (or no number); was this process started by"
                f" {self._setter}?"
            ) from None


def topology_by_tf_config(text: str) -> tuple[RankTopology, str | None]:
    """Where TF_CONFIG puts this process, and the chief's address; workers of a host are a node."""
    if not text:
        return RankTopology(0, 1, 0, 1, 0, 1), None
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        chiefs, workers = cluster.get("chief", ()), cluster.get("worker", ())
        hosts = [word.rpartition(":")[0].strip("[]") for word in (*chiefs, *workers)]
        rank = int(task["index"]) + {"chief": 0, "worker": len(chiefs)}[task["type"]]
        here, nodes = hosts[rank], list(dict.fromkeys(hosts))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as err:
        raise ValueError(f"TF_CONFIG is none of a chief or worker among workers: {text}") from err
    local = (hosts[:rank].count(here), hosts.count(here))
    return RankTopology(rank, len(hosts), *local, nodes.index(here), len(nodes)), hosts[0]


def topology_by_slurm() -> tuple[RankTopology, str | None]:
    """Where srun puts this process, and the node of rank 0 as far as the step shows it."""
    env = Numbers("srun")
    rank = env["SLURM_PROCID"]
    size = env["SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"]
    cross_size = env["SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in env else "SLURM_NNODES"]
    cross_rank = env["SLURM_NODEID"]
    if os.environ.get("SLURM_GTIDS"):
        # The numbers by node below are in the order of the names. In a heterogeneous job
        # SLURM_NODEID counts in the order of the components.
        local_size = len(os.environ["SLURM_GTIDS"].split(","))
    else:
        counts = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ["SLURM_TASKS_PER_NODE"]
        local_size = counts_by_node(counts)[cross_rank]
    chief = _first_node()
    nodes = _nodes_by_task()[:size]
    if len(nodes) == size and nodes[rank] == os.environ.get("SLURMD_NODENAME"):
        order = list(dict.fromkeys(nodes))
        chief, cross_rank = nodes[0], order.index(nodes[rank])
    local_rank = env["SLURM_LOCALID"]
    return RankTopology(rank, size, local_rank, local_size, cross_rank, cross_size), chief


def _nodes_by_task() -> list[str]:
    """The node of each task, with `--distribution=arbitrary`; empty if it is not known."""
    if os.environ.get("SLURM_DISTRIBUTION") != "arbitrary":
        return []
    try:
        text = Path(os.environ["SLURM_HOSTFILE"]).read_text()
    except (KeyError, OSError, UnicodeError):
        return []
    return [node for line in text.split() for node in hosts_in(line)]


def _first_node() -> str | None:
    """The first node of the step: in a heterogeneous job, that of its first component."""
    names = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    nodes = hosts_in(names)
    components = os.environ.get("SLURM_HET_SIZE", "")
    for i in range(int(components) if components.isdigit() else 0):
        for node in hosts_in(os.environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{i}", "")):
            if node in nodes:
                return node
    return next(iter(nodes), None)


def chief_address(chief_ip: str | None) -> str | None:
    """The address of rank 0: as given, else the run's, else that of torch's launchers."""
    return chief_ip or os.environ.get(contract.CHIEF_IP) or os.environ.get("MASTER_ADDR")


def checked_topology(*given: int | None) -> RankTopology:
    if all(value is None for value in given):
        return RankTopology(0, 1, 0, 1, 0, 1)
    numbers = [value for value in given if value is not None]
    if len(numbers) < len(given):
        raise ValueError(
            "rank, size, local_rank, local_size, cross_rank and cross_size: give all six or none"
        )
    topology = RankTopology(*numbers)
    pairs = (topology[0:2], topology[2:4], topology[4:6])
    if (
        not all(0 <= number < count for number, count in pairs)
        or topology.local_size > topology.size
    ):
        raise ValueError(f"these ranks and sizes don't fit together: {topology}")
    return topology


def explicit_ports(
    environ: Mapping[str, str], pub_port: int, pull_port: int, offset: int
) -> tuple[int, ...]:
    """The ports that the user chose, in the order to try them; empty without such a choice."""
    first = environ.get("INTER_TRAIN_PROCESS_COMM_PORT_1")
    second = environ.get("INTER_TRAIN_PROCESS_COMM_PORT_2")
    if first:
        pub_port = int(first)
        pull_port = int(second) if second else pub_port + PULL_PORT - PUB_PORT
    elif (pub_port, pull_port, offset) == (PUB_PORT, PULL_PORT, 0):
        return ()
    elif pub_port != PUB_PORT and pull_port == PULL_PORT:
        return (pub_port + offset,)
    return (pub_port + offset, pull_port + offset)


def chosen_port_offset() -> int:
    # Only ports set by hand for all trials of a node need it; derived ones differ anyway.
    if "INTER_TRAIN_PROCESS_COMM_PORT_1" not in os.environ:
        return 0
    return int(os.environ.get(contract.UNIQUE_PORT_OFFSET) or 0)


def slurm_tasks(environ: Mapping[str, str]) -> int:
    """How many tasks the step around this process has; 1 outside of any."""
    if {"SLURM_PROCID", "SLURM_STEP_NODELIST"}.isdisjoint(environ):
        return 1
    return int(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or 1)
