"""Reading `scontrol show node`."""

from __future__ import annotations

import re

from detslurm.slurm.hostlist import expand_indices
from detslurm.slurm.limits import gpu_counts, known, parse_record
from detslurm.slurm.node_info import NodeInfo
from detslurm.slurm.queue import parse_number

# --details: which GPUs are in use is there for sites, too, that do not count GPUs per job.
NODES_COMMAND = ("scontrol", "--oneliner", "--all", "--details", "show", "node")


def parse_nodes(text: str) -> list[NodeInfo]:
    """The nodes in the output of `scontrol --oneliner --details show node`."""
    return [_node(line) for line in text.splitlines() if line.startswith("NodeName=")]


def _node(line: str) -> NodeInfo:
    # Free text stands at the end of the line, and may resemble fields.
    facts, *notes = re.split(r"\s(?=(?:Reason|Comment|Extra)=)", line, maxsplit=1)
    record = parse_record(facts)
    gpus = gpu_counts(known(record.get("Gres")))
    used = gpu_counts(known(record.get("GresUsed")))
    usable = parse_number(record.get("CPUEfctv"))  # less those that are reserved for the system
    return NodeInfo(
        name=record["NodeName"],
        # A star: the node does not respond. Other signs stand for flags that are named as well.
        state=re.sub(r"[^\w+*]", "", record.get("State", "UNKNOWN")).replace(
            "*", "+NOT_RESPONDING"
        ),
        reason=_reason("".join(notes)),
        partitions=_names(record.get("Partitions")),
        features=_names(record.get("ActiveFeatures")),
        available_features=_names(record.get("AvailableFeatures")),
        cpus=usable or parse_number(record.get("CPUTot")) or 0,
        cpus_used=parse_number(record.get("CPUAlloc")) or 0,
        memory=_memory(record),
        memory_used=parse_number(record.get("AllocMem")),
        gpus=sum(gpus.values()),
        gpus_used=sum(used.values()),
        gpus_in_use=_indices(known(record.get("GresUsed"))),
        gpu_types=tuple(kind for kind in gpus if kind),
    )


def _reason(notes: str) -> str:
    """The text of `Reason=text [user@time]`."""
    found = re.search(r"(?:^|\s)Reason=(.*?)\s*(?:\[[^\s\[\]]*@[^\s\[\]]*\]|$)", notes)
    return found[1] if found else ""


def _indices(gres_used: str) -> tuple[int, ...]:
    """0, 1 and 2 of `gpu:fake:3(IDX:0-2),shard:0`, where GPUs have files."""
    found = re.findall(r"\bgpu:[^(,]*\(IDX:([\d,-]+)\)", gres_used)
    return tuple(sorted(index for text in found for index in expand_indices(text)))


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, known(text).split(",")))


def _memory(record: dict[str, str]) -> int | None:
    """Its resources that are left for jobs."""
    whole, reserved = (parse_number(record.get(key)) for key in ("RealMemory", "MemSpecLimit"))
    return None if whole is None else max(0, whole - (reserved or 0))
