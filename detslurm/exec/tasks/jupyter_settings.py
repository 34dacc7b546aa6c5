"""The settings of a notebook's Jupyter server: in files, because the arguments of a process can be
read by every user of the node."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_PAGE: Final = Path(__file__).parent / "page"
_EXTENSION: Final = "labextensions/detslurm-notice"

_DISABLED: Final = {
    # It asks the internet for news, to which nodes have no route as a rule.
    "@jupyterlab/apputils-extension:announcements": True,
    # Once used, it leaves a TCP port on which any user of the node can run code in the kernel.
    "@jupyterlab/debugger-extension": True,
}

_ANY_PORT: Final = 8888  # Jupyter's default, the only one that it takes beside a socket

KERNEL_PATIENCE: Final = 20.0
"""Seconds that a kernel has for its exit handlers before Jupyter kills it."""

# Packages with pages come first. jupyter-server alone serves programs, such as VS Code. Notebook 6,
# which has no `notebook.app`, is a server of its own.
_INTERFACES: Final = {"jupyterlab": "", "notebook": ".app", "jupyter_server": ""}


def installed_interface() -> str | None:
    """Return the module that serves notebooks with this Python; None if there is none."""
    found = (
        name for name, part in _INTERFACES.items() if find_spec(name) and find_spec(name + part)
    )
    return next(found, None)


class JupyterFiles:
    """The files of a server in a directory that only its user can enter.

    The directory is empty, and its path is short enough for sockets in it.
    """

    def __init__(self, directory: Path) -> None:
        self._settings = directory / "config"
        self._labextensions = directory / "labextensions"
        self._notice = directory / _EXTENSION / "static" / "notice.json"
        self.socket = directory / "jupyter"
        self.runtime = directory  # the paths of the kernels' sockets are long enough as it is

    def write(self, token: str, port: int | None, portal_path: str | None = None) -> None:
        """Write the settings, and the part of the page that saves documents. Raises `OSError`.

        Clients have to send the token. It listens on a port of the loopback address (0: any), or on
        the socket. With a `portal_path`, below which a web portal shows it, it listens on the port
        of all addresses of this node.
        """
        page_settings = self._settings / "labconfig" / "page_config.json"
        page_settings.parent.mkdir(parents=True, mode=0o700)
        page_settings.write_text(json.dumps({"disabledExtensions": _DISABLED}))
        path = self._settings / "jupyter_server_config.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(self._configuration(token, port, portal_path)))
        shutil.copytree(_PAGE, self._notice.parents[1])
        self._notice.write_text("{}")

    def announce(self, message: str) -> None:
        """Let the pages that are open save their documents, and show a message."""
        draft = self._notice.with_suffix(".new")
        draft.write_text(json.dumps({"message": message}))
        draft.replace(self._notice)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the server: the job's, and where these files are.

        The user's own settings apply, too; those of this directory come first.
        """
        path = filter(None, (str(self._settings), environ.get("JUPYTER_CONFIG_PATH")))
        return {
            **environ,
            "JUPYTER_CONFIG_PATH": os.pathsep.join(path),
            "JUPYTER_RUNTIME_DIR": str(self.runtime),
        }

    def _configuration(
        self, token: str, port: int | None, portal_path: str | None
    ) -> dict[str, Any]:
        pages = {"extra_labextensions_path": [str(self._labextensions)]}
        # Each key that decides where it listens is here, because users have old ones of their own.
        listening: dict[str, Any] = {"sock": "", "ip": "127.0.0.1", "port": port, "base_url": "/"}
        if port is None:
            listening |= {"sock": str(self.socket), "sock_mode": "0600", "port": _ANY_PORT}
        elif portal_path is not None:  # the browser names the portal as the host
            listening |= {"ip": "0.0.0.0", "base_url": portal_path, "allow_remote_access": True}
        listening |= {"port_retries": 0, "certfile": "", "keyfile": "", "client_ca": ""}
        return {
            "IdentityProvider": {"token": token},
            "ServerApp": {
                **listening,
                "token": token,  # the key of jupyter-server 1
                "root_dir": str(Path.cwd()),
                "open_browser": False,
                "allow_root": True,
            },
            # Other users of the node could read what a kernel prints on a TCP port.
            "KernelManager": {"transport": "ipc", "shutdown_wait_time": KERNEL_PATIENCE},
            "LabApp": pages,
            "JupyterNotebookApp": pages,
        }
