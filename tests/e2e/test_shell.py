"""`detslurm shell`: a real sshd in a job, real clients, other users, and what is left."""

from __future__ import annotations

import json
import re
import shlex
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cluster import User
from tests.cluster.waiting import wait_for
from tests.distributed.ranks import free_port
from tests.e2e.desk import Desk

if TYPE_CHECKING:
    import psutil
else:
    psutil = pytest.importorskip("psutil")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        not Path("/usr/sbin/sshd").exists(), reason="sshd (openssh-server) is not installed"
    ),
]

# The nodes of the suite's cluster are this machine, under names that nothing else knows.
HERE = ("-o", "HostName=127.0.0.1")
SESSION = """
import json, os
print(json.dumps({
    "job": os.environ["SLURM_JOB_ID"], "trial": os.environ["DET_TRIAL_ID"],
    "gpus": os.environ["CUDA_VISIBLE_DEVICES"], "odd": os.environ["ODD"],
    "cpus": sorted(os.sched_getaffinity(0)), "limits": open("/proc/self/limits").read(),
    "cgroup": open("/proc/self/cgroup").read(),
    "path": os.environ["PATH"].split(":")[0], "cwd": os.getcwd(),
}))
"""
ECHO = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    server.listen()
    while True:
        client, _ = server.accept()
        client.sendall(b"hello from the job")
        client.close()
"""


class ShellDesk(Desk):
    """A user at work with shells."""

    def start(self, *words: str) -> int:
        """Start a shell, and wait until it takes sessions."""
        self.cache_modules()
        number = int(self.run("shell", "start", "--detach", *words).stdout)
        self._wait(number, lambda: (self.keys(number) / "session").exists(), 240, "a shell")
        wait_for(lambda: self.address(number), what="an address")
        return number

    def keys(self, number: int) -> Path:
        return self.trial_dir(number).path / f"detslurm-shell-{number}"

    def address(self, number: int) -> str:
        return self.run("shell", "show-ssh-command", str(number), check=False).stdout

    def ssh_config(self, number: int) -> str:
        return self.run("shell", "ssh-config", str(number)).stdout

    def ssh(self, number: int, *words: str, program: str = "ssh") -> list[str]:
        """A client on this machine, by the printed configuration."""
        return [program, "-F", str(self.keys(number) / "config"), *HERE, *words]

    def session(self, command: str, line: str) -> str:
        """Type a line in a session that a command opens; returns the terminal's text."""
        words = ["script", "-qec", command, "/dev/null"]
        return self.user.run(*words, input=f"{line}; exit\n").stdout

    def server(self, number: int) -> psutil.Process:
        """The program that the job runs."""
        found = map(psutil.Process, self.processes(number))
        return next(one for one in found if "detslurm.exec.tasks.shell_server" in one.cmdline())

    def processes(self, number: int) -> list[int]:
        """All processes of the shell's run."""
        mark = str(self.experiment(number).path)
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("DETSLURM_EXPERIMENT_DIR") == mark:
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def assert_nothing_left(self, number: int) -> None:
        """No process, key, socket or private directory stays behind."""
        wait_for(lambda: not self.processes(number), what="the end of all processes")
        # The agent and the runner remove a moment later what a killed program left.
        wait_for(lambda: not self.keys(number).exists(), what="the end of the keys")
        wait_for(lambda: not [*self.user.tmp.glob("*-shell-*")], what="the end of the files")
        done = self.run("shell", "open", str(number), check=False)
        assert done.returncode == 1 and "has ended" in done.stderr
        assert "detslurm shell start" in done.stderr


@pytest.fixture
def shells(alice: User) -> ShellDesk:
    return ShellDesk(alice)


def test_sessions_are_inside_the_job(shells: ShellDesk, bob: User) -> None:
    """Sessions, copies and forwards work as one user, and not for others, nor after the end."""
    odd = 'it\'s "odd"\nand = long'
    config = {"environment": {"environment_variables": [f"ODD={odd}"]}}
    file = shells.write("shell.yaml", json.dumps(config))
    words = ["--slots", "1", "--config-file", str(file), "--", *HERE]
    started = shells.run("shell", "start", *words, f"python3 -c {shlex.quote(SESSION)}")
    number = int(re.findall(r"Started shell (\d+)", started.stderr)[0])
    _assert_same_as_job(shells, number, json.loads(started.stdout), odd)
    shell = f"detslurm-shell-{number}"
    here, fetch, laptop = shells.address(number).splitlines()
    assert here.endswith(shlex.join(["ssh", "-F", str(shells.keys(number) / "config"), shell]))
    assert "scp -rp alice@" in fetch and "ProxyJump=alice@" in laptop
    block = shells.run("shell", "ssh-config", str(number), "--login", "me@login.example.org")
    assert block.stdout.startswith(f"Host {shell}\n") and "me@login.example.org:/" in block.stderr

    done = shells.run("shell", "open", str(number), "--", "-tt", *HERE, "tty; exit 7", check=False)
    assert done.returncode == 7 and "/dev/pts/" in done.stdout, done.stderr
    shells.user.run(*shells.ssh(number, str(file), f"{shell}:copied", program="scp"))
    assert (shells.user.home / "copied").read_bytes() == file.read_bytes()
    _assert_forwards(shells, number)

    port = _port(block.stdout)
    _assert_refused(shells.user, port)
    _assert_refused(bob, port)
    assert bob.run("ls", str(shells.keys(number)), check=False).returncode
    client = shells.ssh(number, shell, "true")
    shells.run("shell", "kill", str(number))
    shells.assert_nothing_left(number)
    assert shells.user.run(*client, check=False).returncode == 255
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def _assert_same_as_job(shells: ShellDesk, number: int, seen: dict[str, Any], odd: str) -> None:
    """A session has the limits, places and variables of the program that the job runs."""
    job = shells.server(number)
    env = job.environ()
    assert seen["odd"] == odd and seen["cwd"] == str(shells.user.home)
    assert (seen["job"], seen["gpus"]) == (env["SLURM_JOB_ID"], env["CUDA_VISIBLE_DEVICES"])
    assert seen["path"] == env["PATH"].split(":")[0]
    assert seen["cpus"] == sorted(job.cpu_affinity())
    for name in ("limits", "cgroup"):
        assert seen[name] == Path(f"/proc/{job.pid}/{name}").read_text()


def _assert_forwards(shells: ShellDesk, number: int) -> None:
    """A client's port leads to a server in the job, on a socket, as editors' are, or a port."""
    shell, path = f"detslurm-shell-{number}", shells.user.tmp / f"echo-{number}"
    server = shlex.join(["nohup", "python3", "-c", ECHO, str(path)])
    shells.user.run(*shells.ssh(number, shell, f"{server} </dev/null >/dev/null 2>&1 &"))
    wait_for(path.exists, what="the server in the job")
    ports = free_port(), free_port()
    port = _port(shells.ssh_config(number))
    forwards = ["-L", f"{ports[0]}:{path}", "-L", f"{ports[1]}:localhost:{port}"]
    client = shells.user.popen(shells.ssh(number, "-N", *forwards, shell))
    try:
        answers = [wait_for(partial(_answer, port), what="a forward") for port in ports]
    finally:
        client.terminate()
        client.communicate()
    assert answers[0] == b"hello from the job" and answers[1].startswith(b"SSH-2.0-")


def _answer(port: int) -> bytes | None:
    try:
        with socket.create_connection(("127.0.0.1", port)) as client:
            return client.recv(100)
    except OSError:
        return None


def _port(config: str) -> int:
    return int(next(line.split()[1] for line in config.splitlines() if "    Port " in line))


def _assert_refused(user: User, port: int) -> None:
    """A key of one's own opens nothing."""
    key = user.tmp / "stranger"
    user.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    target = ["-p", str(port), "-i", str(key), "-o", "BatchMode=yes", "alice@127.0.0.1", "id"]
    done = user.run("ssh", *options, *target, check=False)
    assert done.returncode == 255 and "Permission denied (publickey)" in done.stderr, done.stderr


@pytest.mark.nightly
def test_srun_takes_the_place_of_sshd(shells: ShellDesk) -> None:
    """Where the site has switched sshd off; then the shell ends because it is not used."""
    site = shells.write("site.yaml", "sshd: false\nslot_type: cpu\n")
    shells.user.env["DETSLURM_SITE"] = str(site)
    shells.cache_modules()
    start = "detslurm shell start --config idle_timeout=20s --config work_dir=/usr"
    shown = shells.session(start, 'echo "<$SLURM_JOB_ID $DET_EXPERIMENT_ID $PWD>"')
    assert "the site has switched sshd off: this session begins with srun" in shown
    assert f"<{shells.job(1)} 1 /usr>" in shown, shown
    shells.wait_for_state(1, "COMPLETED")
    assert "this shell ends: it was not in use for 0.333 min" in shells.log(1)
    shells.assert_nothing_left(1)


@pytest.mark.nightly
def test_twenty_shells_leave_nothing(shells: ShellDesk) -> None:
    """Half of them end by a kill of the program itself, which then can't clean up."""
    numbers = [shells.start("--config", "slurm.slot_type=cpu") for _ in range(20)]
    for number in numbers:
        shells.user.run(*shells.ssh(number, f"detslurm-shell-{number}", "sleep 1000 >&- 2>&- &"))
    for number in numbers[:10]:
        shells.server(number).kill()
    shells.run("shell", "kill", ",".join(map(str, numbers[10:])))
    for number in numbers:
        shells.assert_nothing_left(number)


@pytest.mark.nightly
@pytest.mark.xdist_group("containers")
@pytest.mark.parametrize("runtime", ["charliecloud", "podman"])
def test_a_session_enters_the_container(
    shells: ShellDesk, runtime: str, image: Path, request: pytest.FixtureRequest
) -> None:
    """The image has no sshd: srun begins the session, which then enters the container."""
    request.getfixturevalue(runtime)
    name = image if runtime == "charliecloud" else request.getfixturevalue("podman_image")
    options = ["slurm.slot_type=cpu", f"slurm.container={runtime}", f"environment.image={name}"]
    number = shells.start(*(word for one in options for word in ("--config", one)))
    shown = shells.session(
        f"detslurm shell open {number}", 'echo "<$DET_EXPERIMENT_ID $(ls /usr/bin/ch-run 2>&1)>"'
    )
    assert "sshd is not installed in the container's image" in shown
    assert f"<{number} ls: cannot access '/usr/bin/ch-run'" in shown, shown
    shells.run("shell", "kill", str(number))
    shells.assert_nothing_left(number)
