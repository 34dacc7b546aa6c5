"""OpenSSH's server as an ordinary user: its configuration, and one process for each connection.

sshd runs as `sshd -i` behind a socket of ours: it leaves no daemon, and the connections that are
open are known. The key that was made for the shell opens it, and nothing else does.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import socket
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from detslurm._base import contract
from detslurm._base.access import user_name
from detslurm.exec.tasks.shell_files import AUTHORIZED_KEYS, HOST_KEY, make_key, session_command

_CONFIG: Final = "sshd_config"
_GRACE_SECONDS: Final = 20
"""Seconds that a client has to prove who it is."""

_PLACES: Final = "/usr/sbin:/usr/local/sbin:/sbin"
_SFTP: Final = ("lib/openssh", "libexec/openssh", "lib/ssh", "libexec", "lib/misc")
_ACCEPTED: Final = b"Accepted publickey for "
_NOISE: Final = b"Attempt to write login records"  # which an ordinary user can't
# The bytes that were sent and the bytes that have come, in the kernel's tcp_info.
_BYTES: Final = struct.Struct("=120xQQ")


class NoSshd(Exception):
    """No sshd can run here, for the reason in the text."""


def find_sshd(given: str | None) -> str:
    """The path of an sshd that takes this user: the given path, by default it is searched.

    Raises `NoSshd` if there is none, or `given` is "no".
    """
    is_contained = contract.LIBRARIES in os.environ
    here = "in the container's image" if is_contained else f"on {os.uname().nodename}"
    if given == "no":
        raise NoSshd("the site has switched sshd off")
    sshd = shutil.which(given or "sshd") or (None if given else shutil.which("sshd", path=_PLACES))
    if sshd is None or shutil.which("ssh-keygen") is None:
        name = given or "sshd" if sshd is None else "ssh-keygen"
        raise NoSshd(f"{name} is not installed {here}")
    try:
        shell = pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        raise NoSshd(f"user {os.getuid()} has no account {here}") from None
    if not os.access(shell, os.X_OK):
        raise NoSshd(f"your login shell {shell} is not installed {here}")
    return os.path.abspath(sshd)  # noqa: PTH100 (sshd wants it, and links stay)


def configure(sshd: str, node: Path, work_dir: str) -> None:
    """Write sshd's configuration and its host key. Raises `NoSshd` if sshd doesn't take it."""
    make_key(node / HOST_KEY)
    config = node / _CONFIG
    text = server_config(node, session_command(node, work_dir), sftp_server(sshd))
    config.write_text(f"{text}PermitTTY no\n" if terminal_problem() else text)
    words = [sshd, "-t", "-f", str(config)]
    tried = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if tried.returncode:
        raise NoSshd(f"{sshd} does not run as {user_name()}: {tried.stderr.strip()}")


def server_config(node: Path, session: str, sftp: str | None) -> str:
    """The text of an sshd_config; `sftp` is the path of sftp-server."""
    lines = [
        f'HostKey "{node / HOST_KEY}"',
        f'AuthorizedKeysFile "{str(node / AUTHORIZED_KEYS).replace("%", "%%")}"',
        f"AllowUsers {user_name()}",
        # The keys lie in a private directory; sshd would ask for more of the directories above it.
        "StrictModes no",
        "AuthenticationMethods publickey",
        "PasswordAuthentication no",
        "UsePAM no",
        "PermitUserEnvironment no",
        f"LoginGraceTime {_GRACE_SECONDS}",
        "AllowTcpForwarding yes",
        "AllowStreamLocalForwarding yes",
        "X11Forwarding no",
        "MaxSessions 100",
        "AcceptEnv LANG LC_* COLORTERM",
        "PrintMotd no",
        "UseDNS no",
        "PidFile none",
        f"ForceCommand {session}",
        *([f"Subsystem sftp {sftp}"] if sftp else []),
    ]
    return "".join(f"{line}\n" for line in lines)


def terminal_problem() -> str | None:
    """Return why sshd can give sessions no terminal here; None if it can.

    It gives each terminal to the group tty, and ends the session where it may not do that: in most
    containers.
    """
    ends = os.openpty()
    try:
        group = grp.getgrnam("tty").gr_gid
        if os.fstat(ends[1]).st_gid != group:
            os.fchown(ends[1], -1, group)
    except PermissionError:
        return "sshd can't open terminals here, because they don't have the group tty"
    except KeyError:
        pass  # without such a group terminals keep theirs
    finally:
        for end in ends:
            os.close(end)
    return None


def sftp_server(sshd: str) -> str | None:
    """The path of the sftp-server of this sshd; None if there is none."""
    prefixes = (Path(sshd).parent.parent, Path("/usr"))
    places = (prefix / folder / "sftp-server" for prefix in prefixes for folder in _SFTP)
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)


class Connection:
    """A client's connection, and the sshd that serves it with the configuration in `node`.

    `accepted`: whether the client has proved to be the user. The end of `log` is the end of all
    processes of the connection.
    """

    def __init__(self, sshd: str, node: Path, client: socket.socket) -> None:
        self._client, self.accepted, self._rest = client, False, b""
        self._process = subprocess.Popen(
            [sshd, "-i", "-e", "-f", str(node / _CONFIG)],
            stdin=client.fileno(),
            stdout=client.fileno(),
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        self.log = self._process.stderr

    def read_log(self) -> list[str] | None:
        """Return the next lines of the log, for which this waits; None at its end."""
        data = os.read(self.log.fileno(), 65536)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.accepted |= any(line.startswith(_ACCEPTED) for line in lines)
        shown = [line for line in lines if not line.startswith(_NOISE)]
        return [line.decode(errors="replace").rstrip("\r") for line in shown] if data else None

    def passed(self) -> int | None:
        """Return how many bytes have passed; None where the kernel doesn't count them."""
        try:
            counts = self._client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES.size)
            sent, come = _BYTES.unpack(counts)
            return int(sent + come)
        except (OSError, struct.error):
            return None

    def end(self) -> None:
        """End the connection."""
        self._process.terminate()

    def wait(self, seconds: float) -> None:
        """Wait until its sshd has ended, for so many seconds at most."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(seconds, 0.0))

    def close(self) -> None:
        """Let go of a connection whose log has ended."""
        self._process.wait()
        self.log.close()
        self._client.close()
