"""The REST interface of a Jupyter server, over its Unix socket or its port."""

from __future__ import annotations

import http.client
import json
import socket
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from detslurm._base.addresses import LOOPBACK
from detslurm.exec.tasks.notebook_use import Kernel, ServerUse

_TIMEOUT: Final = 30.0
# Requests with it are no activity of the user.
_QUIET: Final = "?no_track_activity=1"


class JupyterError(Exception):
    """The server did not answer, or refused."""


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT)
        self.sock.connect(self._path)


class JupyterServer:
    """A server that listens on a Unix socket or a port, by its `jpserver-PID.json`.

    Its pages are below `base_url`, "/" as a rule.
    """

    def __init__(self, info: dict[str, Any]) -> None:
        self.socket: str | None = info.get("sock") or None
        self.port: int | None = None if self.socket else int(info["port"])
        self.base_url = str(info["base_url"])
        self._headers = {"Authorization": f"token {info['token']}"}

    def use(self) -> ServerUse:
        """Look at the kernels and terminals. Raises `JupyterError`."""
        kernels = self._call("GET", f"api/kernels{_QUIET}")
        terminals = self._call("GET", f"api/terminals{_QUIET}", missing=[])
        status = self._call("GET", "api/status")
        return ServerUse(
            tuple(
                Kernel(one["id"], one["execution_state"], one["connections"], one["last_activity"])
                for one in kernels
            ),
            tuple((one["name"], one["last_activity"]) for one in terminals),
            status["last_activity"],
        )

    def interrupt(self, kernel: Kernel) -> None:
        """Raise KeyboardInterrupt in the cell that a kernel runs. Raises `JupyterError`."""
        self._call("POST", f"api/kernels/{kernel.id}/interrupt")

    def shut_down(self) -> None:
        """Ask the server to end all kernels, then itself. Raises `JupyterError`."""
        self._call("POST", "api/shutdown")

    def _call(self, method: str, path: str, missing: Any = None) -> Any:
        """The answer to a request; `missing` where the server has no such path."""
        connection = (
            http.client.HTTPConnection(LOOPBACK, self.port, timeout=_TIMEOUT)
            if self.socket is None
            else _UnixConnection(self.socket)
        )
        try:
            connection.request(method, f"{self.base_url}{path}", headers=self._headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == HTTPStatus.NOT_FOUND and missing is not None:
                return missing
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise JupyterError(f"{method} {path}: {answer.status} {answer.reason}")
            return json.loads(body) if body else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise JupyterError(f"{method} {path}: {error}") from error
        finally:
            connection.close()


def read_server(runtime: Path, pid: int) -> JupyterServer | None:
    """The server that a process has become, by Jupyter's runtime directory; None while it does not
    listen yet."""
    try:
        return JupyterServer(json.loads((runtime / f"jpserver-{pid}.json").read_text()))
    except (OSError, ValueError, KeyError):
        return None  # it is not there, or is just being written
