"""A real Slurm cluster on this machine: up, down, nodes lost and found."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType

from tests.cluster import config, nodes, sharedmemory
from tests.cluster.daemons import Daemons, PortTaken, StartError, missing_programs, search_path
from tests.cluster.ports import claim_ports
from tests.cluster.spec import ClusterSpec, Layout, Ports
from tests.cluster.users import User, local_user
from tests.cluster.waiting import wait_for

_STARTS = 3
PREFIX = "dsc-"
"""Clusters' folders begin so: short, for the sockets inside, and found again by `sweep`."""


def temporary_folder() -> Path:
    """A fresh short folder that other users may enter."""
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base if len(base) < 60 else "/tmp"))
    folder.chmod(0o755)
    return folder


def _publish(path: Path, text: str) -> None:
    """Commands that read the file at this moment see the old one or the new one."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


@dataclass
class Cluster:
    """A running (or yet to be started) cluster; as a context manager it is up inside."""

    spec: ClusterSpec = field(default_factory=ClusterSpec)
    root: Path = field(default_factory=temporary_folder)
    ports: Ports = field(default_factory=lambda: Ports(0))

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    @property
    def daemons(self) -> Daemons:
        return Daemons(self.spec, self.layout, self.ports)

    @property
    def env(self) -> dict[str, str]:
        """What a client needs to speak to this cluster."""
        return {"SLURM_CONF": str(self.layout.slurm_conf), "PATH": search_path()}

    @classmethod
    def attach(cls, root: Path) -> Cluster:
        """The cluster that was started in `root`, by whomever."""
        state = json.loads((root / "cluster.json").read_text())
        state["spec"]["extra"] = tuple(state["spec"]["extra"])
        return cls(ClusterSpec(**state["spec"]), root, Ports(state["base"]))

    def up(self) -> Cluster:
        """Start all daemons and wait until every node is idle; taken down again on failure."""
        self._check_folder()
        try:
            if missing := missing_programs(self.spec.accounting):
                raise StartError(f"not installed: {', '.join(missing)}")
            for left in reversed(range(_STARTS)):
                try:
                    with claim_ports(3 + self.spec.nodes) as self.ports:
                        self._prepare()
                        self._start()
                    break
                except PortTaken:
                    if not left:
                        raise
                    self._end_all()
                    self._remove_folders()
        except BaseException:
            self.down()
            raise
        return self

    def _remove_folders(self) -> None:
        """The file that says who owns it stays."""
        for entry in self.root.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)

    def _check_folder(self) -> None:
        """`down` removes the folder, so nothing else may be in it."""
        self.layout.check()
        if self.root.exists() and {entry.name for entry in self.root.iterdir()} - {"owner"}:
            raise StartError(f"{self.root} is not empty")

    def _prepare(self) -> None:
        layout, spec = self.layout, self.spec
        for folder in (layout.etc, layout.run, layout.log, layout.var, layout.homes):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
        shared = [layout.shared, *(layout.node_tmp(node) for node in spec.node_names())]
        for folder in shared:
            folder.mkdir(exist_ok=True)
            folder.chmod(0o1777)
        (layout.var / "ctld").mkdir(exist_ok=True)
        self._remember()
        self._write_configuration()

    def _remember(self) -> None:
        state = {"spec": asdict(self.spec), "base": self.ports.base, "started": time.time()}
        (self.root / "cluster.json").write_text(json.dumps(state))

    def _write_configuration(self) -> None:
        etc, spec, layout = self.layout.etc, self.spec, self.layout
        devices = nodes.gpu_devices(layout.var / "dev", spec.gpus)
        _publish(etc / "slurm.conf", config.slurm_conf(spec, layout, self.ports))
        (etc / "gres.conf").write_text(config.gres_conf(spec, devices))
        (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (etc / "job_submit.lua").write_text(config.job_submit_lua(spec))
        for node in spec.node_names():
            (etc / f"hosts.{node}").write_text(config.hosts(spec, node))
        if spec.accounting:
            secret = etc / "slurmdbd.conf"
            secret.touch(mode=0o600)
            secret.write_text(config.slurmdbd_conf(spec, layout, self.ports))

    def _start(self) -> None:
        daemons = self.daemons
        daemons.start_munged()
        if self.spec.accounting:
            daemons.start_database()
            daemons.start_accounting()
        daemons.start_controller()
        for node in self.spec.node_names():
            daemons.start_node(node)
        wait_for(self.all_idle, 180, "all nodes idle")

    def down(self) -> None:
        """Kill every job and daemon of the cluster and remove its folder."""
        self._end_all()
        shutil.rmtree(self.root, ignore_errors=True)

    def _end_all(self) -> None:
        for node in self.spec.node_names():
            nodes.power_cut(self.layout, node)
        nodes.kill_jobs(self.layout)
        for daemon in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            self.daemons.stop(daemon)
        # Until none is left: whoever still writes makes the removal of the folder fail.
        wait_for(lambda: not self.daemons.kill_strays(), 60, "the end of all processes")
        sharedmemory.clean(self._started())

    def _started(self) -> float:
        try:
            return float(json.loads((self.root / "cluster.json").read_text())["started"])
        except (OSError, ValueError):
            return time.time()

    def __enter__(self) -> Cluster:
        return self.up()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def kill_node(self, node: int | str) -> None:
        """A power cut: slurmd, its steps and their processes are gone without an end record."""
        nodes.power_cut(self.layout, self._name(node))

    def boot_node(self, node: int | str) -> None:
        """Power again: slurmd starts and registers; back when the node takes jobs."""
        name = self._name(node)
        if self.daemons.pid(f"slurmd.{name}") is None:
            self.daemons.start_node(name)
        wait_for(lambda: self.node_state(name) in ("idle", "mix", "alloc"), 180, f"{name} back")

    @staticmethod
    def _name(node: int | str) -> str:
        return f"n{node}" if isinstance(node, int) else node

    def node_state(self, node: int | str) -> str:
        """The state of one node as sinfo has it, e.g. "idle", "mix", "down*"."""
        name = self._name(node)
        return self.command("sinfo", "-h", "-p", "main", "-n", name, "-o", "%t").strip()

    def all_idle(self) -> bool:
        """Whether every node waits for work."""
        states = self.command("sinfo", "-hN", "-p", "main", "-o", "%t").split()
        return states == ["idle"] * self.spec.nodes

    def command(self, *argv: str, check: bool = True) -> str:
        """Run a Slurm command as the cluster's administrator; its standard output."""
        return self.daemons.command(*argv, check=check)

    def user(self, name: str) -> User:
        """An ordinary account of this machine, with a home inside the cluster's folder."""
        return local_user(name, self.spec, self.layout, self.env)

    @contextlib.contextmanager
    def reshaped(self, **changes: object) -> Iterator[None]:
        """Policies of the spec changed for a while (e.g. send_user_signal, grace_time)."""
        before = self.spec
        self._reconfigure(replace(before, **changes))  # type: ignore[arg-type]
        try:
            yield
        finally:
            self._reconfigure(before)

    def _reconfigure(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self._remember()
        self._write_configuration()
        self.command("scontrol", "reconfigure")

    def queued(self, user: str | None = None) -> list[str]:
        """The jobs in the queue (of one user), running ones too."""
        whose = ["-u", user] if user else []
        return sorted(set(self.command("squeue", "-h", "-o", "%F", *whose).split()))

    def cancel_all(self, user: str | None = None) -> None:
        """End every job (of one user), and wait until the nodes are rid of them."""

        def gone() -> bool:
            jobs = self.queued(user)
            if jobs:  # a job that is about to end may still submit another
                self.command("scancel", *jobs, check=False)
            return not jobs

        wait_for(gone, 180, "an empty queue")

    def job(self, job_id: str) -> dict[str, str]:
        """What the controller knows of a job (an array's element: "12_3"), {} if nothing."""
        text = self.command("scontrol", "-o", "show", "job", job_id, check=False)
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def wait_state(self, job_id: str, *states: str, timeout: float = 240.0) -> dict[str, str]:
        """Wait until a job is in one of `states`, e.g. "RUNNING"; its record then.

        TimeoutError tells what the controller showed last, and the end of the job's output.
        """
        record: dict[str, str] = {}

        def there() -> bool:
            nonlocal record
            record = self.job(job_id)
            return record.get("JobState") in states

        try:
            wait_for(there, timeout, f"job {job_id} in {'/'.join(states)}")
        except TimeoutError as err:
            output = Path(record.get("StdOut", "/dev/null"))
            said = output.read_text(errors="replace")[-2000:] if output.is_file() else ""
            raise TimeoutError(f"{err}\n{record}\n{said}") from None
        return record
