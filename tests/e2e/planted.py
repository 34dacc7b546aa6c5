"""Faults of sites, planted for real in one of the suite's clusters while a block runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import Cluster, ClusterSpec, wait_for
from tests.e2e.desk import Desk

Plant = Callable[[Desk, Cluster], AbstractContextManager[dict[str, str]]]
"""Plants a fault, and yields variables for the command."""

_LUA = """\
function slurm_job_submit(job, partitions, uid)
   {submit}
   return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
   return slurm.SUCCESS
end
"""


def in_node(cluster: Cluster, node: str, *argv: str | Path) -> None:
    """Run a command in the mount namespace of a node."""
    if not cluster.spec.own_host_names:
        pytest.skip("no mounts of nodes: this machine allows no namespaces")
    pid = cluster.daemons.pid(f"slurmd.{node}")
    subprocess.run(["nsenter", f"--target={pid}", "--mount", *argv], check=True)


@contextmanager
def _mounted(cluster: Cluster, node: str, place: Path, *options: str) -> Iterator[None]:
    """A mount over a place of one node."""
    in_node(cluster, node, "mount", *options, place)
    try:
        yield
    finally:
        in_node(cluster, node, "umount", "--lazy", place)


def store_missing(node: str) -> Plant:
    """The file system of the store is not mounted on a node."""

    @contextmanager
    def plant(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
        place = cluster.layout.shared
        with _mounted(cluster, node, place, "-t", "tmpfs", "-o", "mode=755", "tmpfs"):
            yield {}

    return plant


@contextmanager
def tmp_full(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
    """No byte is free in /tmp of n2."""
    place = desk.user.tmp
    with _mounted(cluster, "n2", place, "-t", "tmpfs", "-o", "size=64k,mode=1777", "tmpfs"):
        fill = ["sh", "-c", 'head -c 1M /dev/zero > "$0/all" 2>/dev/null; true', str(place)]
        in_node(cluster, "n2", *fill)
        yield {}


@contextmanager
def tmp_noexec(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
    """Programs can't be started from /tmp of n3."""
    place = desk.user.tmp
    with _mounted(cluster, "n3", place, "-t", "tmpfs", "-o", "noexec,mode=1777", "tmpfs"):
        yield {}


@contextmanager
def pmix_broken(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
    """PMIx can't write where it has its sockets on n2."""
    place = cluster.layout.node_tmp("n2")
    with _mounted(cluster, "n2", place, "-t", "tmpfs", "-o", "ro", "tmpfs"):
        yield {}


@contextmanager
def munge_missing(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
    """There is no munged on n4: up to 24.11 the controller soon takes the node for dead."""
    socket = cluster.layout.munge_socket
    with _mounted(cluster, "n4", socket, "--bind", "/dev/null"):
        with suppress(TimeoutError):
            wait_for(lambda: cluster.node_state("n4").startswith("down"), 60, "n4 is down")
        yield {}
    wait_for(lambda: cluster.node_state("n4") == "idle", what="n4 is back")


def lua(submit: str) -> Plant:
    """A job_submit plugin with these lines."""

    @contextmanager
    def plant(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
        before = cluster.spec
        _restart_controller(cluster, replace(before, extra=("JobSubmitPlugins=lua",)), submit)
        try:
            yield {}
        finally:
            _restart_controller(cluster, before, "")

    return plant


def _restart_controller(cluster: Cluster, spec: ClusterSpec, submit: str) -> None:
    """It loads plugins as it starts. Where `reconfigure` starts a new one, a restart would race."""
    cluster.daemons.stop("slurmctld")
    cluster.spec = spec
    cluster._write_configuration()
    (cluster.layout.etc / "job_submit.lua").write_text(_LUA.format(submit=submit))
    cluster.daemons.start_controller()
    wait_for(cluster.all_idle, what="all nodes idle")


def reshaped(**changes: object) -> Plant:
    """Other settings of the cluster."""

    @contextmanager
    def plant(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
        with cluster.reshaped(**changes):
            yield {}

    return plant


def task_prolog(lines: str) -> Plant:
    """A TaskProlog of the site; `{folder}` is a directory that all may read."""

    @contextmanager
    def plant(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
        folder = desk.user.folder_in(cluster.layout.shared, "prolog")
        folder.chmod(0o755)
        prolog = folder / "prolog.sh"
        prolog.write_text("#!/bin/sh\n" + lines.format(folder=folder))
        prolog.chmod(0o755)
        with cluster.reshaped(extra=(f"TaskProlog={prolog}",)):
            yield {}

    return plant


@contextmanager
def clock_off(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
    """The clock of n2 is an hour ahead, to all but Slurm's daemons, for munge insists on it."""
    if shutil.which("cc") is None:
        pytest.skip("no wrong clock: there is no C compiler")
    library = cluster.layout.shared / "clock.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    library.chmod(0o755)
    lines = f"""\
if [ "$SLURMD_NODENAME" = n2 ]; then
  echo export LD_PRELOAD={library}
  echo export CHAOS_CLOCK=3600
fi
"""
    with task_prolog(lines)(desk, cluster) as env:
        yield env


def wrapper(program: str, text: str) -> Plant:
    """A wrapper of the site before one of Slurm's programs."""

    @contextmanager
    def plant(desk: Desk, cluster: Cluster) -> Iterator[dict[str, str]]:
        folder = desk.user.folder_in(cluster.layout.shared, "wrappers")
        real = shutil.which(program, path=desk.user.env["PATH"])
        path = folder / program
        path.write_text("#!/bin/sh\n" + text.format(real=real))
        path.chmod(0o755)
        desk.user.own(folder)
        yield {"PATH": f"{folder}:{desk.user.env['PATH']}"}

    return plant
