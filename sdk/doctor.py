"""Checks of everything that a submission depends on, with advice for faults."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from detslurm._base.quantities import counted
from detslurm.slurm import Cluster, ClusterLimits, SlurmError

Level = Literal["ok", "note", "warning", "broken"]


class Finding(NamedTuple):
    """The result of one check."""

    area: str
    level: Level
    text: str
    advice: str = ""


def examine(root: Path, connect: Callable[[], Cluster]) -> list[Finding]:
    """All findings on a store's directory, the cluster, and this Python."""
    return [*_site(root), *store_findings(root), *slurm_findings(connect), *python_findings()]


def store_findings(root: Path) -> Iterator[Finding]:
    """Whether the directory's file system has the properties that the store relies on."""
    from detslurm.store import probe

    place, missing = root, not root.exists()
    while not place.exists() and place != place.parent:
        place = place.parent
    report = probe(place)
    if missing:
        yield Finding(
            "store", "note", f"{root} does not exist yet: the first submission creates it"
        )
    if not missing:
        yield from _root_findings(root)
        yield from _lost_records(root)
    kind = f"{report.fs_type} at {report.mount_point}" if report.mount_point else report.fs_type
    free = [f"{report.free_bytes / 1e9:.1f} GB"] if report.free_bytes is not None else []
    free += [f"{report.free_inodes} inodes"] if report.free_inodes is not None else []
    room = f", {' and '.join(free)} free" if free else ""
    yield Finding("store", "ok" if report.ok else "note", f"{place} is on {kind}{room}")
    for check in report.checks:
        advice = (
            ""
            if check.ok
            else "Put the store elsewhere: set DETSLURM_ROOT, or root in a site profile."
        )
        yield Finding(
            "store", "ok" if check.ok else "broken", f"{check.name}: {check.detail}", advice
        )
    for warning in report.warnings:
        yield Finding("store", "warning", warning, _store_advice(warning))


def _root_findings(root: Path) -> Iterator[Finding]:
    """The owner of the root, and the users who share it."""
    from detslurm._base.access import is_shared
    from detslurm.store.root_access import group, weakness

    state = root.stat()
    if problem := weakness(root, state):
        yield Finding("store", "broken", *problem.split(": ", 1))
    elif is_shared(state.st_mode):
        yield Finding("store", "note", f"shared with the group {group(state.st_gid)}")


def _lost_records(root: Path) -> Iterator[Finding]:
    """Whether the store has all its numbered records: a purge or a restore may lose some."""
    from detslurm.store import Store, StoreError
    from detslurm.store.rebuilding import ADVICE, lost_records

    try:
        lost = lost_records(Store(root))
    except StoreError as error:
        yield Finding("store", "warning", f"its records can't be listed: {error}")
        return
    if lost:
        some = ", ".join(map(str, lost[:5])) + (" ..." if len(lost) > 5 else "")
        text = f"{counted(len(lost), 'record')} missing, although later ones are there: {some}"
        yield Finding("store", "broken", text, ADVICE)


def _store_advice(warning: str) -> str:
    if "other nodes" in warning or "memory" in warning:
        return "Fine on a single machine; on a cluster take a directory that every node sees."
    return (
        "Free some space or inodes, or ask for more, before long experiments."
        if "free" in warning
        else ""
    )


def slurm_findings(connect: Callable[[], Cluster]) -> Iterator[Finding]:
    """Whether the cluster answers, and which of its limits affect submissions."""
    try:
        cluster = connect()
        limits = cluster.limits()
    except SlurmError as error:
        yield Finding("slurm", "broken", error.message, error.advice)
        return
    if cluster.name == "local":
        text = "no Slurm on this machine: experiments run on this machine alone"
        yield Finding("slurm", "note", text, "Log in to a cluster's login node to use its Slurm.")
        return
    yield Finding("slurm", "ok", f"cluster {limits.cluster or '?'} answers")
    yield from _rules(limits)
    yield from _pools(cluster)


def _pools(cluster: Cluster) -> Iterator[Finding]:
    """Free resources, as `resource-pool list` has them."""
    from detslurm.sdk.jobs.resource_pool import pools_of

    warnings: list[str] = []
    try:
        found = [pool for pool in pools_of(cluster, warnings.append) if pool.up]
    except SlurmError as error:
        warnings.append(f"{cluster.name} does not show its queue: {error.message}")
        found = []
    for warning in warnings:
        yield Finding("slurm", "note", warning)
    if shown := [pool for pool in found if pool.slots_total is not None]:
        texts = (
            f"{pool.name} {pool.slots_free} of {pool.slots_total}"
            f" {'GPUs' if pool.slot_type == 'cuda' else 'CPUs'}, {pool.jobs_queued} jobs wait"
            for pool in shown
        )
        yield Finding("slurm", "note", f"free slots: {'; '.join(texts)}")


def _rules(limits: ClusterLimits) -> Iterator[Finding]:
    size = limits.max_array_tasks or limits.max_array_size - 1
    yield Finding("slurm", "note", f"an array has up to {counted(size, 'trial')}")
    up = [partition for partition in limits.partitions.values() if partition.up]
    if not limits.partitions:
        text = "the partitions are not shown to you (PrivateData): their limits are unknown"
        yield Finding("slurm", "note", text, "Submissions work; Slurm itself checks the limits.")
    elif not up:
        yield Finding("slurm", "broken", "no partition is up", "`sinfo -s` shows why.")
    names = ", ".join(p.name + (" (default)" if p.default else "") for p in up)
    if up:
        yield Finding("slurm", "ok", f"partitions: {names}")
    if limits.partitions and limits.default_partition is None:
        yield Finding(
            "slurm",
            "warning",
            "there is no default partition",
            "Name one in every experiment (resources.resource_pool) or in the site profile.",
        )
    if not limits.accounting:
        text = "there is no accounting: Slurm knows only for some minutes how a job ended"
        yield Finding("slurm", "note", text, "No action is needed: the store keeps the outcomes.")
    if not limits.job_requeue:
        text = "JobRequeue=0: jobs are requeued only because detslurm asks for it with --requeue"
        yield Finding("slurm", "note", text)
    canceling = [p.name for p in up if "CANCEL" in p.preempt_mode]
    if canceling:
        text = f"preemption cancels jobs in {', '.join(canceling)}"
        yield Finding(
            "slurm", "note", text, "Trials there continue in successor jobs automatically."
        )


def python_findings() -> Iterator[Finding]:
    """The Python of the jobs, and its installed packages; nothing is imported."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", "ok", f"Python {version} at {sys.executable}")
    if Path(sys.prefix).is_relative_to("/tmp"):
        text = f"{sys.prefix} lies in /tmp, which other nodes don't see"
        yield Finding("python", "warning", text, "Install where every node can read it.")
    found = _version("torch")
    if found:
        yield Finding("python", "ok", f"torch {found}")
    else:
        text = "torch is not installed in this environment"
        yield Finding("python", "note", text, "Only code that imports it needs it.")


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _purge(after: int | None, root: Path) -> Iterator[Finding]:
    """Whether the site deletes unused files, and the experiments that are next."""
    from detslurm.sdk.disk.purge import in_danger
    from detslurm.store import Store

    if after is None:
        return
    text = f"files that were not used for {counted(after, 'day')} are deleted here"
    listed = Store(root).catalog().newest_first() if root.exists() else ()
    found = in_danger((one for one in listed if not isinstance(one, int)), after)[::-1]
    if not found:
        yield Finding("site", "note", text)
        return
    some = ", ".join(map(str, found[:5])) + (" ..." if len(found) > 5 else "")
    advice = "Copy what you need to a file system without a purge: `detslurm checkpoint download`."
    yield Finding("site", "warning", f"{text}: soon those of experiment {some}", advice)


def _site(root: Path) -> Iterator[Finding]:
    from detslurm.config import ConfigErrors, load_site

    try:
        site = load_site()
    except ConfigErrors as error:
        yield Finding("site", "broken", str(error), "Correct the profile, or move it away.")
        return
    except OSError as error:
        yield Finding("site", "broken", f"{error.filename}: {error.strerror}")
        return
    if site.source:
        yield Finding("site", "ok", f"profile {site.source}")
        yield from _purge(site.purge_days, root)
    else:
        yield Finding(
            "site",
            "note",
            "no site profile",
            "`detslurm site init -o ~/.config/detslurm/site.yaml` writes one.",
        )
