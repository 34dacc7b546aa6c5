"""The job of a shell: its sshd's configuration, the environment of sessions, and its idle end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detslurm._base.ssh_client import ShellHost
from detslurm.exec.orphans import RunMark
from detslurm.exec.tasks import session, shell_activity, shell_server, sshd
from detslurm.exec.tasks.shell_activity import Sample, in_use, last_input_or_output, terminals
from tests.cluster.waiting import wait_for

QUIET = Sample(time=100.0, cpu=5.0, terminal=50.0, passed={1: 1000})


def after(seconds: float = 60.0, **changes: Any) -> Sample:
    return QUIET._replace(time=QUIET.time + seconds, **changes)


@pytest.mark.parametrize(
    ("now", "used"),
    [
        (after(), False),
        (after(terminal=51.0), True),
        (after(cpu=8.0), False),  # an editor's server takes 5 % of a CPU
        (after(cpu=12.0), True),
        (after(passed={1: 3000}), False),  # signs of life of `ssh` and VS Code
        (after(passed={1: 9000}), True),
        (after(passed={}), False),
        (after(passed={1: 1000, 2: 9000}), True),
        (after(passed={1: None}), True),  # unknown is in use
    ],
)
def test_sessions_are_in_use_while_something_happens(now: Sample, used: bool) -> None:
    assert in_use(QUIET, now) is used


def test_terminals_are_found_with_their_last_output() -> None:
    ours, theirs = os.openpty()
    try:
        path = os.ttyname(theirs)
        with subprocess.Popen(
            [sys.executable, "-c", f"import os; os.open({path!r}, os.O_RDWR); input()"],
            stdin=subprocess.PIPE, start_new_session=True,
        ) as process:  # fmt: skip
            assert wait_for(lambda: terminals([process.pid, os.getpid()])) == {path}
            process.communicate(b"\n")
        status = os.stat(path)  # noqa: PTH116
        assert last_input_or_output([path, "/dev/pts/gone"]) == max(
            status.st_atime, status.st_mtime
        )
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_session_has_the_environment_of_the_job(tmp_path: Path) -> None:
    odd = 'it\'s "quoted" $HOME\nsecond line = \\ \udcff'
    job = {"ODD": odd, "BASH_FUNC_module%%": "() { echo it; }", "PATH": os.environ["PATH"],
           "SHELL": "/bin/false", "SSH_TTY": "of the submitting shell"}  # fmt: skip
    file = tmp_path / "environment"
    file.write_bytes(session.file_content(job))
    assert session.read_environment(str(file)) == job
    words = [sys.executable, "-I", "-S", session.__file__, str(file), str(tmp_path)]
    command = 'pwd; module; printf %s "$ODD"; printf "|%s" "$TERM" "$LOST" "$SSH_TTY"'
    of_sshd = {
        "SHELL": "/bin/bash",
        "TERM": "xterm",
        "LOST": "lost",
        "SSH_ORIGINAL_COMMAND": command,
    }
    done = subprocess.run(words, env=of_sshd, capture_output=True, check=True)
    assert done.stdout == f"{tmp_path}\nit\n".encode() + os.fsencode(odd) + b"|xterm||"


def test_a_shell_of_a_session_keeps_the_path() -> None:
    """Profiles of login shells set a new one."""
    assert session.session_argv("/bin/zsh", None) == ["zsh"]
    assert session.session_argv("/bin/bash", "ls -l") == ["bash", "-c", "ls -l"]


def test_sshd_takes_one_key_of_one_user(tmp_path: Path) -> None:
    lines = sshd.server_config(tmp_path, "begin", "/usr/lib/sftp-server").splitlines()
    assert f'AuthorizedKeysFile "{tmp_path}/authorized_keys"' in lines
    expected = "AuthenticationMethods publickey, PasswordAuthentication no, UsePAM no, PidFile none"
    assert {*expected.split(", "), "PermitUserEnvironment no", "ForceCommand begin"} <= set(lines)


def test_sessions_are_on_the_first_node() -> None:
    run = {"DET_TRIAL_ID": "1", "DET_TRIAL_RUN_ID": "1", "DETSLURM_EXPERIMENT_DIR": "/gone/1",
           "DETSLURM_JOB": "5", "NODE_RANK": "1"}  # fmt: skip
    assert shell_server.main([], run) == 0


class Quiet:
    """An inbox to which no signal comes."""

    def __init__(self, signals: object) -> None:
        self.read, self._write = os.pipe()

    def fileno(self) -> int:
        return self.read

    def take(self) -> set[int]:
        return set()


def test_a_connection_without_a_process_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As when the user has no processes left; the sessions of the others go on until they idle."""
    monkeypatch.setattr(shell_server, "SignalInbox", Quiet)
    monkeypatch.setattr(shell_activity, "in_use", lambda before, now: False)
    server = shell_server.ShellServer(RunMark("/gone/1", 1, 1, "5"), idle=0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.listen(listener, "/no/sshd", tmp_path)
        with socket.create_connection(listener.getsockname()) as client:
            assert "it was not in use for" in server.serve()
            assert client.recv(1) == b""
    assert "can't serve a connection: [Errno 2]" in capfd.readouterr().out


def test_no_sshd_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(sshd.NoSshd, match="/no/sshd is not installed on"):
        sshd.find_sshd("/no/sshd")
    with pytest.raises(sshd.NoSshd, match="switched sshd off"):
        sshd.find_sshd("no")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sshd, "_PLACES", str(tmp_path))
    with pytest.raises(sshd.NoSshd, match="sshd is not installed on"):
        sshd.find_sshd(None)


def test_the_ssh_config_pins_the_host_and_leads_through_the_login_node() -> None:
    host = ShellHost(7, "n3", 22222, "ada", "/a b/100%", "ada@login")
    block = host.block().splitlines()
    assert block[0] == "Host detslurm-shell-7"
    pinned = {"    HostKeyAlias detslurm-shell-7", "    StrictHostKeyChecking yes"}
    assert {*pinned, "    ProxyJump ada@login", '    IdentityFile "/a b/100%%/key"'} <= set(block)
    assert host.command()[-1] == "detslurm-shell-7"
    assert "Include ~/.ssh/config" in host.config()
