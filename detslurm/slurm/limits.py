"""The rules of a Slurm site, read from scontrol and sinfo."""

from __future__ import annotations

import re
from collections.abc import Sequence

from detslurm.slurm import command
from detslurm.slurm.errors import SlurmError
from detslurm.slurm.hostlist import expand_hostlist
from detslurm.slurm.interface import ClusterLimits, PartitionLimits
from detslurm.slurm.queue import parse_duration, parse_number

_CONFIG = ["scontrol", "show", "config"]
_PARTITIONS = ["scontrol", "--oneliner", "--all", "show", "partition"]
# Partition, CPUs and generic resources of its kinds of node: a few lines even on a large machine.
# Without --noconvert 1024 CPUs are 1K.
_SINFO = ["sinfo", "--noheader", "--noconvert", "--all", "--format=%R|%c|%G"]


class LimitsQuery:
    """One call each to the controller's config, partitions and nodes, all at once."""

    def __init__(self) -> None:
        commands = (_CONFIG, _PARTITIONS, _SINFO)
        self._begun = [(argv, command.begin(argv)) for argv in commands]

    def answer(self) -> ClusterLimits:
        """Wait for the answers."""
        try:
            return parse_limits(*(_shown(argv, begun) for argv, begun in self._begun))
        finally:
            self.give_up()

    def give_up(self) -> None:
        """End the calls whose answers are not needed any more."""
        for _, process in self._begun:
            with process:
                process.kill()


def _shown(argv: Sequence[str], begun: command.Process) -> str:
    """The answer; empty where the site shows it to administrators alone (PrivateData)."""
    try:
        return command.run(argv, begun=begun)
    except SlurmError as refusal:
        if not command.is_hidden(refusal.message):
            raise
        return ""


def parse_limits(config: str, partitions: str, sinfo: str) -> ClusterLimits:
    """The rules in the text of `scontrol show config`, `show partition` and sinfo."""
    values = parse_config(config)
    nodes = _node_kinds(sinfo)
    default_mode = values.get("PreemptMode", "OFF")
    tracked = values.get("AccountingStorageTRES", "").split(",")
    return ClusterLimits(
        cluster=values.get("ClusterName", ""),
        max_array_size=_int(values.get("MaxArraySize"), 1001),
        max_array_tasks=_max_array_tasks(values),
        max_job_count=_int(values.get("MaxJobCount"), 10000),
        kill_wait=_int(values.get("KillWait"), 30),
        job_requeue=values.get("JobRequeue", "1") not in ("0", "NO"),
        accounting=values.get("AccountingStorageType", "").endswith("slurmdbd"),
        enforces_qos=not {"limits", "safe"}.isdisjoint(
            values.get("AccountingStorageEnforce", "").split(",")
        ),
        changes_jobs=values.get("JobSubmitPlugins", "") not in ("", "(null)"),
        age_points=_age_points(values),
        preempt_type=values.get("PreemptType", ""),
        preempt_mode=default_mode,
        gres_types=_names(values.get("GresTypes")),
        tres_gpus=any(t.startswith("gres/gpu") for t in tracked),
        partitions={
            p.name: p
            for p in (
                _partition(parse_record(line), nodes, default_mode)
                for line in partitions.splitlines()
                if line.startswith("PartitionName=")
            )
        },
    )


def _age_points(values: dict[str, str]) -> float:
    """The gain of priority by an hour of waiting. `priority/basic` has no such figures."""
    longest = parse_duration(values.get("PriorityMaxAge", "")) or 0
    return 3600 * _int(values.get("PriorityWeightAge"), 0) / longest if longest else 0.0


def parse_config(text: str) -> dict[str, str]:
    """`Key = value` lines as a dict."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def parse_record(line: str) -> dict[str, str]:
    """One `scontrol --oneliner show` record, `Key=value Key=value ...`, as a dict."""
    found = re.finditer(r"(?:^|\s)([A-Za-z][\w:/]*)=(.*?)(?=\s+[A-Za-z][\w:/]*=|\s*$)", line)
    return {match[1]: match[2] for match in found}


def _partition(
    record: dict[str, str], kinds: dict[str, list[tuple[int, dict[str, int]]]], preempt: str
) -> PartitionLimits:
    name = record["PartitionName"]
    mine = kinds.get(name, [])
    gpus = [sum(kind.values()) for _, kind in mine]
    return PartitionLimits(
        name=name,
        default=record.get("Default") == "YES",
        up=record.get("State", "UP") == "UP",
        max_time=_minutes(record.get("MaxTime")),
        default_time=_minutes(record.get("DefaultTime")),
        max_nodes=parse_number(record.get("MaxNodes")),
        preempt_mode=record.get("PreemptMode", preempt),
        grace_time=_int(record.get("GraceTime"), 0),
        priority_tier=_int(record.get("PriorityTier"), 1),
        nodes=tuple(expand_hostlist(known(record.get("Nodes")))),
        cpus_per_node=max((cpus for cpus, _ in mine), default=None),
        gpus_per_node=max(gpus, default=None),
        gpu_types=tuple(dict.fromkeys(t for _, kind in mine for t in kind if t)),
        qos=known(record.get("QoS")),
        allow_accounts=_names(record.get("AllowAccounts")),
        allow_groups=_names(record.get("AllowGroups")),
        allow_qos=_names(record.get("AllowQos")),
        deny_accounts=_names(record.get("DenyAccounts")),
        deny_qos=_names(record.get("DenyQos")),
    )


def _names(text: str | None) -> tuple[str, ...]:
    return () if text == "ALL" else tuple(filter(None, known(text).split(",")))


def _node_kinds(sinfo: str) -> dict[str, list[tuple[int, dict[str, int]]]]:
    kinds: dict[str, list[tuple[int, dict[str, int]]]] = {}
    for line in sinfo.splitlines():
        name, cpus, gres = line.split("|", 2)
        kinds.setdefault(name, []).append((_int(cpus.rstrip("+"), 1), gpu_counts(gres)))
    return kinds


def gpu_counts(gres: str) -> dict[str, int]:
    """GPU type ("" when untyped) -> count in a gres list such as `gpu:a100:4(S:0-1),shard:8`."""
    counts: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        match = re.fullmatch(r"gpu(?::([^:]+?))??(?::(\d+))?", item.strip())
        if match:
            kind = match[1] or ""
            counts[kind] = counts.get(kind, 0) + int(match[2] or 1)
    return counts


def known(text: str | None) -> str:
    """The value of a field; empty where Slurm has none."""
    return "" if text in (None, "(null)", "N/A") else text or ""


def _minutes(text: str | None) -> int | None:
    if not text or text in ("UNLIMITED", "INFINITE", "NONE"):
        return None
    seconds = parse_duration(text)
    return seconds // 60 if seconds is not None else parse_number(text)


def _max_array_tasks(values: dict[str, str]) -> int | None:
    match = re.search(r"\bmax_array_tasks=(\d+)", values.get("SchedulerParameters", ""))
    return int(match[1]) if match else None


def _int(text: str | None, default: int) -> int:
    number = parse_number(text)
    return default if number is None else number
