"""The pages of a store in Jupyter: what jupyter-server-proxy starts, and sends requests to.

The proxy answers its own user alone, and no other user can open the socket that it names; what a
browser calls the host is the portal's name here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def server() -> dict[str, Any]:
    """Return what jupyter-server-proxy wants to know; the entry point of that group."""
    return {
        # Without -P a module in the folder of the notebook takes the place of any other.
        "command": [sys.executable, "-P", "-m", "detslurm.look.jupyter", "{unix_socket}"],
        "unix_socket": True,
        "timeout": 60,
        "absolute_url": False,
        "new_browser_tab": True,
        "launcher_entry": {"enabled": True, "title": "detslurm"},
    }


def main(argv: Sequence[str]) -> None:
    """Serve on the Unix socket that `argv` names until the process that has started this one
    ends."""
    import secrets

    from detslurm._base.child_processes import die_with_parent
    from detslurm.look.app import application
    from detslurm.look.serving import UnixServer
    from detslurm.sdk import Client

    # A proxy takes a server that has ended for broken: this one stays as long as Jupyter does.
    die_with_parent()
    with UnixServer(Path(argv[0]), application(Client, token=secrets.token_urlsafe())) as listening:
        listening.serve_until_idle(float("inf"))


if __name__ == "__main__":
    main(sys.argv[1:])
