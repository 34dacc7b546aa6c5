"""Reading `scontrol show node`."""

from __future__ import annotations

import re

from detslurm.slurm.hostlist import expand_indices
from detslurm.slurm.limits import gpu_counts, parse_record
from detslurm.slurm.node_info import NodeInfo

# --details: which GPUs are in use is there for sites, too, that do not count GPUs per job.
NODES_COMMAND = ("scontrol", "--oneliner", "--all", "--details", "show", "node")


def parse_nodes(text: str) -> list[NodeInfo]:
    """The nodes in the output of `scontrol --oneliner --details show node`."""
    return [_node(line) for line in text.splitlines() if line.startswith("NodeName=")]


def _node(line: str) -> NodeInfo:
    # Free text stands at the end of the line, and may resemble fields.
    facts, *notes = re.split(r"\s(?=(?:Reason|Comment|Extra)=)", line, maxsplit=1)
    record = parse_record(facts)
    gpus = gpu_counts(_known(record, "Gres"))
    used = gpu_counts(_known(record, "GresUsed"))
    return NodeInfo(
        name=record["NodeName"],
        # A star: the node does not respond. Other signs stand for flags that are named as well.
        state=re.sub(r"[^\w+*]", "", record.get("State", "UNKNOWN")).replace(
            "*", "+NOT_RESPONDING"
        ),
        reason=_reason("".join(notes)),
        partitions=_names(record, "Partitions"),
        features=_names(record, "ActiveFeatures"),
        available_features=_names(record, "AvailableFeatures"),
        cpus=_int(record.get("CPUEfctv")) or _int(record.get("CPUTot")) or 0,  # less reserved ones
        cpus_used=_int(record.get("CPUAlloc")) or 0,
        memory=_memory(record),
        memory_used=_int(record.get("AllocMem")),
        gpus=sum(gpus.values()),
        gpus_used=sum(used.values()),
        gpus_in_use=_indices(_known(record, "GresUsed")),
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


def _names(record: dict[str, str], key: str) -> tuple[str, ...]:
    return tuple(filter(None, _known(record, key).split(",")))


def _memory(record: dict[str, str]) -> int | None:
    """What is left of it for jobs."""
    whole = _int(record.get("RealMemory"))
    return None if whole is None else max(0, whole - (_int(record.get("MemSpecLimit")) or 0))


def _known(record: dict[str, str], key: str) -> str:
    value = record.get(key, "")
    return "" if value in ("(null)", "N/A") else value


def _int(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None
