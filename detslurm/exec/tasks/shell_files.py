"""The files of a shell: what sshd and its sessions read on the node, and what clients read.

The files of the node lie in a private directory there, those of clients in a private directory
of the store. Both are removed when the shell ends.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from detslurm._base import contract
from detslurm._base.ssh_client import CONFIG, KEY, KNOWN_HOSTS, SESSION, ShellHost, host_alias
from detslurm.exec.tasks import session
from detslurm.store import fs

HOST_KEY: Final = "host"
AUTHORIZED_KEYS: Final = "authorized_keys"
ENVIRONMENT: Final = "environment"

_OUTSIDE: Final = """\
echo "detslurm: this session can't enter the job's container: it is on the node itself" >&2
exec "${SHELL:-/bin/sh}"
"""


def session_command(node: Path, work_dir: str) -> str:
    """The command line with which a session begins in `work_dir`."""
    program = [sys.executable, "-I", "-S", session.__file__]
    return shlex.join([*program, str(node / ENVIRONMENT), work_dir])


def write_environment(node: Path, environment: Mapping[str, str]) -> None:
    """Write the environment of sessions, with its secrets."""
    content = session.file_content(dict(environment))
    fs.write_new(str(node / ENVIRONMENT), content, secret=True)


def offer_ssh(keys: Path, node: Path, shell: ShellHost) -> None:
    """Make the user's key, which sshd takes from then on, and all else that `ssh` needs.

    `keys` is the directory of clients, `node` that of the node, with the host key.
    """
    make_key(keys / KEY)
    shutil.copyfile(keys / f"{KEY}.pub", node / AUTHORIZED_KEYS)
    kind, key, *_ = (node / f"{HOST_KEY}.pub").read_text().split()
    known = f"{host_alias(shell.task)} {kind} {key}\n"
    fs.write_new(str(keys / KNOWN_HOSTS), known.encode(), secret=True)
    fs.write_new(str(keys / CONFIG), shell.config().encode(), secret=True)


def offer_srun(keys: Path, session: str) -> None:
    """Make the directory of clients, with the script of a session that srun starts.

    srun starts it outside of the job's container. There it enters the container, if it may.
    """
    keys.mkdir(mode=0o700)
    keys.chmod(0o700)  # a shared directory hands its mode on
    script = f"exec {session}\n"
    if contract.LIBRARIES in os.environ:
        enter = f"nsenter -t {os.getpid()} -U -m --preserve-credentials --"
        script = f"{enter} true 2>/dev/null && exec {enter} {session}\n{_OUTSIDE}"
    fs.write_new(str(keys / SESSION), script.encode(), secret=True)


def make_key(path: Path) -> None:
    """Make a key without a passphrase; the public key is beside it."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.parent.name]
    subprocess.run([*words, "-f", str(path)], check=True, stdin=subprocess.DEVNULL)
