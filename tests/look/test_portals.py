"""The ways to the pages that others' programs make: a real sshd, Passenger and Jupyter."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from detslurm.look import ondemand
from tests.cluster.waiting import wait_for
from tests.distributed.ranks import free_port
from tests.look.http_requests import Answer, get
from tests.look.ui_process import ui
from tests.sdk.scenes import Scene

pytest.importorskip("plotly")
psutil = pytest.importorskip("psutil")

SSHD, APACHE = Path("/usr/sbin/sshd"), Path("/usr/sbin/apache2")
MODULES = Path("/usr/lib/apache2/modules")
PASSENGER = Path("/usr/lib/ruby/vendor_ruby/phusion_passenger/locations.ini")
PREFIX = "/pun/dev/detslurm"


@dataclass(frozen=True)
class Program:
    """One that runs, and the file with what it says."""

    process: subprocess.Popen[bytes]
    log: Path


@dataclass(frozen=True)
class PortalUser:
    """An ordinary user with a directory and a store in it, and the programs that they run."""

    path: Path
    user: int
    env: Mapping[str, str]

    @property
    def name(self) -> str:
        return pwd.getpwuid(self.user).pw_name

    def give(self, *paths: Path) -> None:
        """Make these the user's."""
        if os.getuid() == 0:
            for path in paths:
                os.chown(path, self.user, self.user)

    @contextmanager
    def runs(self, words: Sequence[object], *, as_root: bool = False) -> Iterator[Program]:
        """A program with all that it starts."""
        log = self.path / f"{Path(str(words[0])).name}.log"
        switch = {} if as_root or os.getuid() != 0 else {"user": self.user, "extra_groups": []}
        with log.open("w") as file, subprocess.Popen(
            [*map(str, words)], cwd=self.path, env={"PATH": os.environ["PATH"], **self.env},
            stdout=file, stderr=file, start_new_session=True, **switch,  # type: ignore[call-overload]
        ) as process:  # fmt: skip
            try:
                yield Program(process, log)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(60)
                finally:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def place() -> Iterator[PortalUser]:
    """An ordinary user's, where paths of sockets are short enough."""
    with tempfile.TemporaryDirectory(prefix="portal-", dir="/tmp") as folder:
        path = Path(folder)
        path.chmod(0o755)
        scene = Scene(path / "store")
        scene.run(scene.experiment(1, name="lively"), losses=[0.5], end="completed")
        (path / "run").mkdir(0o700)
        env = {"HOME": folder, "DETSLURM_ROOT": str(scene.root), "DETSLURM_SITE": "",
               "XDG_RUNTIME_DIR": str(path / "run"), "TMPDIR": folder}  # fmt: skip
        user = pwd.getpwnam("daemon").pw_uid if os.getuid() == 0 else os.getuid()
        found = PortalUser(path, user, env)
        found.give(path, *path.rglob("*"))
        yield found


def listens(port: int, program: Program) -> None:
    """Wait until this program does so, and no other."""

    def holds_it() -> bool:
        assert program.process.poll() is None, program.log.read_text(errors="replace")
        return any(
            (one.pid, one.status, one.laddr.port) == (program.process.pid, "LISTEN", port)
            for one in psutil.net_connections("tcp4")
        )

    try:
        wait_for(holds_it, 120, f"a server on port {port}")
    except TimeoutError as error:
        raise AssertionError(program.log.read_text(errors="replace")) from error


@contextmanager
def sshd(place: PortalUser) -> Iterator[Path]:
    """A server of the user's own, and the client's configuration, which leads every host to it."""
    port, keys = free_port(), place.path / "keys"
    keys.mkdir()
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
        subprocess.run(words, check=True)
    kind, key, *_ = (keys / "host.pub").read_text().split()
    (keys / "known").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (keys / "sshd_config").write_text(
        dedent(f"""\
        ListenAddress 127.0.0.1:{port}
        HostKey {keys}/host
        AuthorizedKeysFile {keys}/user.pub
        StrictModes no
        UsePAM no
        PidFile none
        """)
    )
    (keys / "config").write_text(
        dedent(f"""\
        HostName 127.0.0.1
        Port {port}
        IdentityFile {keys}/user
        IdentitiesOnly yes
        UserKnownHostsFile {keys}/known
        BatchMode yes
        ExitOnForwardFailure yes
        """)
    )
    place.give(keys, *keys.iterdir())
    with place.runs([SSHD, "-D", "-e", "-f", keys / "sshd_config"]) as server:
        listens(port, server)
        yield keys / "config"


@pytest.mark.skipif(not SSHD.exists(), reason=f"{SSHD} (openssh-server) is not installed")
def test_the_printed_line_opens_a_tunnel_to_the_socket(place: PortalUser) -> None:
    """As it stands, but for the laptop's port; it goes on with the next server."""
    port = free_port()
    with sshd(place) as config, ui(place.env, user=place.user, group=place.user) as running:
        command, *words = shlex.split(running.tunnel.replace("8080:", f"{port}:", 1))
        assert words[:2] == ["-N", "-L"] and words[-1].startswith(f"{place.name}@")
        with place.runs([command, "-F", config, *words]) as client:
            listens(port, client)
            assert "lively" in get(port, Host="localhost:8080").text
            assert get(port, Host="evil.example:8080").status == 403
            running.process.terminate()
            running.process.wait(120)
            with ui(place.env, user=place.user, group=place.user):
                assert "lively" in get(port, "/experiments/1/", Host="localhost:8080").text


@pytest.mark.skipif(
    not (APACHE.exists() and PASSENGER.exists()) or os.getuid() != 0,
    reason=f"needs root, {APACHE} and {PASSENGER} (libapache2-mod-passenger)",
)
def test_passenger_runs_the_app_below_its_prefix(place: PortalUser) -> None:
    """As its user, with nothing of a user's environment, and in a portal's name."""
    port, app = free_port(), place.path / "app"
    ondemand.install(app, place.path / "store", {})
    (place.path / "registry").mkdir()
    place.give(app, *app.rglob("*"))
    modules = ("mpm_event", "authz_core", "dir", "alias", "passenger")
    loads = "\n".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so" for name in modules)
    config = place.path / "apache.conf"
    config.write_text(
        loads
        + dedent(f"""
        ServerName portal
        Listen 127.0.0.1:{port}
        PidFile {place.path}/apache.pid
        Mutex file:{place.path}
        ErrorLog /dev/stderr
        User {place.name}
        Group {place.name}
        PassengerRoot {PASSENGER}
        PassengerInstanceRegistryDir {place.path}/registry
        PassengerDisableSecurityUpdateCheck on
        PassengerDisableAnonymousTelemetry on
        DocumentRoot {place.path}/registry
        Alias {PREFIX} {app}/public
        <Location {PREFIX}>
            Require all granted
            PassengerBaseURI {PREFIX}
            PassengerAppRoot {app}
            PassengerAppType wsgi
            PassengerStartupFile passenger_wsgi.py
            PassengerPython {app}/bin/python
            PassengerUser {place.name}
        </Location>
        """)
    )

    def ask(path: str) -> Answer:
        return get(port, PREFIX + path, Host="portal.example.org")

    words = [APACHE, "-d", place.path, "-f", config, "-D", "FOREGROUND"]
    with place.runs(words, as_root=True) as server:
        listens(port, server)
        bare = ask("")
        assert bare.status == 303, server.log.read_text()
        assert bare.headers["location"] in ("./detslurm/", f"http://portal.example.org{PREFIX}/")
        assert 'href="experiments/1/"' in ask("/").text
        assert "lively" in ask("/experiments/1/").text
        assert ask("/experiments/1/snapshot.json").status == 200
        assert ask("/experiments/7/").status == 404


@pytest.mark.skipif(
    find_spec("jupyter_server_proxy") is None, reason="jupyter-server-proxy is not installed"
)
def test_jupyter_serves_it_to_its_user_below_a_prefix(place: PortalUser) -> None:
    """From the entry point of the installed package; without Jupyter's token there is nothing."""
    port, base = free_port(), "/user/ada/"
    words = [
        sys.executable, "-m", "jupyter_server", "--no-browser", f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.base_url={base}",
        "--IdentityProvider.token=sesame",
    ]  # fmt: skip

    def ask(path: str, **headers: str) -> Answer:
        headers |= {"Authorization": "token sesame"}
        return get(port, f"{base}detslurm{path}", **headers)

    with place.runs(words) as server:
        listens(port, server)
        assert get(port, f"{base}detslurm/").status in (302, 403)
        assert ask("").headers["location"].endswith(f"{base}detslurm/")
        assert 'href="experiments/1/"' in ask("/").text
        assert "lively" in ask("/experiments/1/").text
        etag = ask("/experiments/1/snapshot.json").headers["etag"]
        assert ask("/experiments/1/snapshot.json", **{"If-None-Match": etag}).status == 304
