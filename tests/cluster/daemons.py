"""Starting and stopping the daemons of one cluster; each leaves a pid file."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from detslurm.slurm.command import is_transient
from tests.cluster import config, processes
from tests.cluster.spec import ClusterSpec, Layout, Ports
from tests.cluster.waiting import wait_for

SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
READY = 180.0
"""Seconds that a daemon may take to come up, on a machine that starts two clusters at once."""
FOR_ALL = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "sinfo", "scontrol")
FOR_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb", "sacctmgr", "sacct")


def search_path() -> str:
    """PATH with the folders of the daemons, which ordinary users often lack."""
    return f"{os.environ.get('PATH', '/usr/local/bin:/usr/bin:/bin')}:{SBIN}"


def missing_programs(accounting: bool = True) -> list[str]:
    """The programs that a cluster needs and that aren't installed."""
    wanted = FOR_ALL + (FOR_ACCOUNTING if accounting else ())
    return [name for name in wanted if shutil.which(name, path=search_path()) is None]


def has_pmix() -> bool:
    """Whether this Slurm starts MPI ranks over PMIx; Debian builds 26.05 without it."""
    return any(Path("/").glob("usr/lib/*/slurm*/mpi_pmix.so"))


MARK = "DETSLURM_TEST_CLUSTER"
"""In the environment of everything that a cluster starts: names its folder."""

_IN_USE = "Address already in use"


class StartError(RuntimeError):
    """A daemon didn't come up; the message ends with the tail of its log."""


class PortTaken(StartError):
    """Somebody has taken its port after it was found free."""


@dataclass(frozen=True)
class Daemons:
    """The daemons of one cluster."""

    spec: ClusterSpec
    layout: Layout
    ports: Ports

    def environment(self) -> dict[str, str]:
        """A clean environment for daemons and Slurm commands."""
        base = {"PATH": search_path(), "LANG": "C.UTF-8", MARK: str(self.layout.root)}
        return base | {"SLURM_CONF": str(self.layout.slurm_conf)}

    def pid(self, daemon: str) -> int | None:
        """The running process of `daemon`, None when it is down."""
        return processes.read_pid(self.layout.pid_file(daemon))

    def start_munged(self) -> None:
        """One munged serves the controller and all nodes."""
        key, var, run = self.layout.etc / "munge.key", self.layout.var, self.layout.run
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(1024))
        self._launch(
            "munged",
            f"--key-file={key}",
            f"--socket={self.layout.munge_socket}",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.layout.log}/munged.log",
            f"--seed-file={var}/munged.seed",
            "--num-threads=4",
            "--force",  # the folder's owner may differ from the daemon's: it is our own folder
        )
        self._ready("munged", self.layout.munge_socket.exists, READY)

    def start_database(self) -> None:
        """MariaDB on a private data directory and on loopback only."""
        data, run = self.layout.var / "mysql", self.layout.database_socket.parent
        tmp = self.layout.var / "mysql-tmp"
        # A server that starts removes every temporary table in its tmpdir, also other servers'.
        common = [f"--tmpdir={tmp}", *(["--user=mysql"] if os.geteuid() == 0 else [])]
        if not (data / "mysql").is_dir():
            self._make_for_mysql(data, run, tmp)
            self._launch(
                "mariadb-install-db",
                "--no-defaults",
                *common,
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            )
        # setsid --fork: mariadbd has no daemon mode of its own.
        options = [*self._database_options(data), *common]
        self._launch("setsid", "--fork", "mariadbd", *options, name="mariadbd")
        self._ready("mariadbd", self._database_answers, READY)
        self.command(*self._client("mariadb"), "-e", config.grants(self.spec))

    @staticmethod
    def _make_for_mysql(*folders: Path) -> None:
        for folder in folders:
            folder.mkdir(exist_ok=True)
            if os.geteuid() == 0:
                shutil.chown(folder, "mysql")

    def _database_options(self, data: Path) -> list[str]:
        return [
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={self.layout.database_socket}",
            f"--port={self.ports.database}",
            "--bind-address=127.0.0.1",
            f"--pid-file={self.layout.pid_file('mariadbd')}",
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-lock-wait-timeout=900",
            "--max-allowed-packet=16M",
            "--skip-name-resolve",
        ]

    def _client(self, program: str) -> list[str]:
        return [program, "--no-defaults", "-uroot", "-S", str(self.layout.database_socket)]

    def _database_answers(self) -> bool:
        return self._try(*self._client("mariadb-admin"), "ping")

    def start_accounting(self) -> None:
        """slurmdbd, and this cluster made known to it."""
        self._launch("slurmdbd")
        self._ready("slurmdbd", lambda: self._try("sacctmgr", "-n", "show", "cluster"), READY)
        known = self.command("sacctmgr", "-nP", "show", "cluster", "format=cluster")
        if self.spec.name not in known.split():
            self.command("sacctmgr", "-i", "add", "cluster", self.spec.name)

    def start_controller(self) -> None:
        """slurmctld; by this very name, since the binary asks argv[0] who it is."""
        self._launch("slurmctld")
        self._ready(
            "slurmctld", lambda: "UP" in self.command("scontrol", "ping", check=False), READY
        )

    def start_node(self, node: str) -> None:
        """The slurmd of one node."""
        hosts = self.layout.etc / f"hosts.{node}"
        # A shell with a view of its own, which becomes slurmd: "$0" is the node's name. Its
        # terminals have the group tty, as on any Linux that systemd has started.
        script = (
            'hostname "$0" && mount --bind "$1" /etc/hosts'
            " && mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts"
            ' && mount --bind /dev/pts/ptmx /dev/ptmx && exec slurmd -N "$0"'
        )
        own_view = ["unshare", "--uts", "--mount", "sh", "-c", script, node, str(hosts)]
        argv = own_view if self.spec.own_host_names else ["slurmd", "-N", node]
        self._launch(*argv, name="slurmd")
        self._ready(f"slurmd.{node}", lambda: self.pid(f"slurmd.{node}"), READY)

    def stop(self, daemon: str, timeout: float = 20.0) -> None:
        """SIGTERM, and SIGKILL for what has not gone after `timeout` seconds."""
        pid = self.pid(daemon)
        if pid is None:
            return
        processes.send(pid, signal.SIGTERM)
        try:
            wait_for(lambda: not processes.alive(pid), timeout, f"end of {daemon}")
        except TimeoutError:
            processes.send(pid, signal.SIGKILL)

    def kill_strays(self) -> list[int]:
        """SIGKILL what has no pid file: a start that was cut short leaves such; whom it hit."""
        root = str(self.layout.root)
        found = [pid for pid in processes.pids() if processes.environment(pid).get(MARK) == root]
        strays = [pid for pid in found if pid != os.getpid()]
        for pid in strays:
            processes.send(pid, signal.SIGKILL)
        return strays

    def command(self, *argv: str, check: bool = True) -> str:
        """Run a command of Slurm or MariaDB in a clean environment; its standard output.

        One that a busy controller did not answer is run again.
        """

        def run() -> subprocess.CompletedProcess[str]:
            env = self.environment()
            return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=150)

        done = run()
        if done.returncode and is_transient(done.stderr):
            done = run()
        if check and done.returncode:
            raise StartError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def _try(self, *argv: str) -> bool:
        env = self.environment()
        return not subprocess.run(argv, env=env, capture_output=True, timeout=60).returncode

    def _launch(self, *argv: str, name: str = "") -> None:
        """Run what puts itself into the background; its words go to a log of its own."""
        name = name or argv[0]
        with (self.layout.log / f"{name}.out").open("ab") as out:
            done = subprocess.run(
                argv,
                env=self.environment(),
                cwd=self.layout.var,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                timeout=READY,
                check=False,
            )
        if done.returncode:
            raise self._failure(name, f"{name}: exit {done.returncode}")

    def _ready(self, daemon: str, condition: Callable[[], object], timeout: float) -> None:
        def ready() -> object:
            # It has ended then, and says so nowhere else.
            if _IN_USE in self._tail(daemon):
                raise self._failure(daemon, daemon)
            return condition()

        try:
            wait_for(ready, timeout, daemon)
        except TimeoutError as error:
            raise self._failure(daemon, str(error)) from None

    def _failure(self, daemon: str, what: str) -> StartError:
        said = f"{what}\n{self._tail(daemon)}"
        return PortTaken(said) if _IN_USE in said else StartError(said)

    def _tail(self, daemon: str) -> str:
        lines: list[str] = []
        for path in sorted(self.layout.log.glob(f"{daemon}*")):
            lines += path.read_text(errors="replace").splitlines()[-10:]
        return "\n".join(lines)
