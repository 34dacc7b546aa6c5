"""What a test cluster is like: its size, policies and places, as plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.cluster.namespaces import may_unshare

SOCKET_PATH_LIMIT = 107
"""sun_path holds 108 bytes, the last one a NUL."""
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Where more threads than cores are at work, torch's wait for one another by spinning: a small
training takes up to ten times the CPU."""
LIGHT_STARTS = {"DETSLURM_SUITE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""Each Python of the suite's environment runs `tests.startup` first, and torch looks for no devices
of others among all that is installed."""


@dataclass(frozen=True)
class ClusterSpec:
    """Size and policies of a cluster; CPUs and memory are declared, not real."""

    name: str = "dsc"
    nodes: int = 4
    cpus: int = 8
    memory: int = 8000
    gpus: int = 4
    accounting: bool = True
    preempt_mode: Literal["REQUEUE", "CANCEL"] = "REQUEUE"
    grace_time: int = 20
    send_user_signal: bool = False
    max_array_size: int = 1001
    cred_expire: int = 5
    kill_wait: int = 20  # whoever is being ended still saves, and a busy disk takes its time
    min_job_age: int = 300
    slurmd_timeout: int = 10
    job_name_prefix: str = ""
    """What a job_submit plugin of the site puts before the name of every job."""
    own_host_names: bool = field(default_factory=may_unshare)
    """Each node has a host name of its own, by which Open MPI tells what shares its memory."""
    debian_hosts: bool = False
    """Where nodes have names of their own, their /etc/hosts has 127.0.1.1 for them, as Debian
    installs it; else 127.0.0.1."""
    umask: int = 0o022
    shared_tmp: bool = False
    """Users keep TMPDIR in their home directories, which all nodes share."""
    variables: Mapping[str, str] = field(default_factory=lambda: ONE_THREAD | LIGHT_STARTS)
    """What the users' shells export besides, and sbatch hands on to their jobs."""
    extra: tuple[str, ...] = ()

    def node_names(self) -> list[str]:
        """The names of the nodes, n1 first."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True)
class Ports:
    """One block of ports that belongs to one cluster."""

    base: int

    @property
    def controller(self) -> int:
        return self.base

    @property
    def accounting(self) -> int:
        return self.base + 1

    @property
    def database(self) -> int:
        return self.base + 2

    def node(self, number: int) -> int:
        """The port of the slurmd of node `number` (counted from 1)."""
        return self.base + 2 + number


@dataclass(frozen=True)
class Layout:
    """Where everything of one cluster lives: all below `root`."""

    root: Path

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def var(self) -> Path:
        return self.root / "var"

    @property
    def homes(self) -> Path:
        return self.root / "home"

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def database_socket(self) -> Path:
        return self.run / "mysql" / "s"

    def node_tmp(self, node: str) -> Path:
        """The node's own /tmp: several slurmd on one host collide in a common one."""
        return self.var / f"tmp.{node}"

    def node_spool(self, node: str) -> Path:
        return self.var / f"spool.{node}"

    def node_log(self, node: str) -> Path:
        return self.log / f"slurmd.{node}.log"

    def pid_file(self, daemon: str) -> Path:
        return self.run / "mysql" / "pid" if daemon == "mariadbd" else self.run / f"{daemon}.pid"

    def check(self) -> None:
        """Refuse a root so long that the unix sockets below it can't be bound."""
        longest = max(len(os.fsencode(s)) for s in (self.munge_socket, self.database_socket))
        if longest > SOCKET_PATH_LIMIT:
            spare = len(os.fsencode(self.root)) - (longest - SOCKET_PATH_LIMIT)
            raise ValueError(f"{self.root}: at most {spare} bytes, for the sockets below it")
