"""`detslurm resource-pool`, `agent` and `slot`: the cluster as Determined's users know it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from detslurm.cli.arguments.cluster_option import cluster_option
from detslurm.cli.arguments.ids import client
from detslurm.cli.output.printing import Column, Table, shows
from detslurm.sdk.jobs.resource_pool import ResourcePool
from detslurm.sdk.parts import NodeInfo, compress_indices

_POOL = [
    Column("Name", lambda pool: pool.name + (" *" if pool.default else ""), least=8),
    Column("State", lambda pool: "UP" if pool.up else "DOWN", drop=6),
    Column("Slots (free/total)", lambda pool: _of(pool.slots_free, pool.slots_total)),
    Column("Type", lambda pool: ",".join(pool.gpu_types) or pool.slot_type, drop=4),
    Column("Nodes (up/total)", lambda pool: _of(pool.nodes_available, pool.nodes_total), drop=5),
    Column("Running", lambda pool: pool.jobs_running, drop=3),
    Column("Queued", lambda pool: pool.jobs_queued),
    Column(
        "Time Limit",
        lambda pool: _minutes(pool.max_time) or "unlimited",
        csv_value=lambda pool: pool.max_time,
    ),
    Column(
        "Default Time",
        lambda pool: _minutes(pool.default_time),
        drop=8,
        csv_value=lambda pool: pool.default_time,
    ),
    Column("Max Nodes", lambda pool: pool.max_nodes, drop=9),
    Column("Preemption", lambda pool: pool.preempt_mode, drop=2),
    Column("Tier", lambda pool: pool.priority_tier, drop=7),
    Column("QOS", lambda pool: pool.qos, drop=10),
    Column("Admits", lambda pool: _admits(pool), drop=1, least=10),
]
_AGENT = [
    Column("Agent ID", lambda node: node.name, least=8),
    Column("State", lambda node: node.state, least=5),
    Column("Slots (used/total)", lambda node: _of(node.slots_used, node.slots)),
    Column("Type", lambda node: _device(node), drop=3),
    Column("Resource Pool", lambda node: ",".join(node.partitions), drop=2, least=10),
    Column("CPUs (used/total)", lambda node: _of(node.cpus_used, node.cpus), drop=5),
    Column("Memory MiB (used/total)", lambda node: _of(node.memory_used, node.memory), drop=6),
    Column("Features", lambda node: ",".join(node.features), drop=7, least=8),
    Column("Reason", lambda node: node.reason, drop=1, least=12),
]
_SLOT = [
    Column("Agent ID", lambda slots: slots.agent, least=8),
    Column("Slots", lambda slots: slots.count),
    Column("Slot ID", lambda slots: compress_indices(slots.slot_ids), drop=3, least=6),
    Column("Type", lambda slots: slots.device or slots.slot_type, drop=4),
    Column("Status", lambda slots: slots.state, "state"),
    Column("Resource Pool", lambda slots: ",".join(slots.resource_pools), drop=2, least=10),
    Column("Jobs", lambda slots: ", ".join(slots.jobs), drop=1, least=10),
]


@click.group("resource-pool")
def resource_pool() -> None:
    """See the partitions of the cluster."""


@click.group()
def agent() -> None:
    """See the nodes of the cluster."""


@click.group()
def slot() -> None:
    """See the slots of the cluster: its GPUs, or CPUs where a node has none."""


@resource_pool.command("list")
@cluster_option
@shows
def list_resource_pools(cluster: str) -> Table:
    """List the partitions with their free slots, limits and queues; * marks the default one.

    Nodes that belong to several partitions count in each of them.

    \b
    Examples:
      detslurm resource-pool list
      detslurm resource-pool list --json
    """
    found = client().resource_pools(cluster=cluster)
    return Table(_POOL, found, lambda: [pool.to_dict() for pool in found])


@agent.command("list")
@click.option("--resource-pool", "-p", "pool", metavar="NAME", help="Show the nodes of one alone.")
@cluster_option
@shows
def list_agents(pool: str | None, cluster: str) -> Table:
    """List the nodes with their state, their usage, and why one is drained or down.

    \b
    Examples:
      detslurm agent list
      detslurm agent list --resource-pool a100
    """
    found = client().agents(pool, cluster=cluster)
    return Table(_AGENT, found, lambda: [_agent_data(node) for node in found])


@slot.command("list")
@click.option("--resource-pool", "-p", "pool", metavar="NAME", help="Show the slots of one alone.")
@cluster_option
@shows
def list_slots(pool: str | None, cluster: str) -> Table:
    """List the slots of each node: those in use with the node's jobs, those free or unavailable.

    \b
    Examples:
      detslurm slot list
      detslurm slot list --resource-pool a100 --json
    """
    found = client().slots(pool, cluster=cluster)
    return Table(_SLOT, found, lambda: [one.to_dict() for one in found])


def _agent_data(node: NodeInfo) -> dict[str, Any]:
    names = ("available", "slots", "slots_used", "slots_free")
    return {**asdict(node), **{name: getattr(node, name) for name in names}}


def _of(some: int | None, of: int | None) -> str:
    return "?" if some is None or of is None else f"{some}/{of}"


def _device(node: NodeInfo) -> str:
    return ",".join(node.gpu_types) or ("cuda" if node.gpus else "cpu")


def _minutes(minutes: int | None) -> str:
    """Minutes as sbatch takes them: 1-00:00, 01:30."""
    if minutes is None:
        return ""
    days, rest = divmod(minutes, 1440)
    clock = f"{rest // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock


def _admits(pool: ResourcePool) -> str:
    """Whom it admits, where not everybody."""
    kinds = (
        ("accounts", pool.allow_accounts), ("groups", pool.allow_groups), ("QOS", pool.allow_qos),
        ("not accounts", pool.deny_accounts), ("not QOS", pool.deny_qos),
    )  # fmt: skip
    return "; ".join(f"{what} {','.join(names)}" for what, names in kinds if names)
