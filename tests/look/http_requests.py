"""What a browser does, without one: requests to an application, or to a server on a socket."""

from __future__ import annotations

import http.client
import io
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from wsgiref.types import WSGIApplication
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator


class Answer(NamedTuple):
    """The answer to a request; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(application: WSGIApplication, path: str = "/", **environ: Any) -> Answer:
    """A request to an application, with an optional `body`; the standard's own checks look at both
    sides."""
    body: bytes = environ.pop("body", b"")
    place, _, query = path.partition("?")
    given: dict[str, Any] = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": place,
        "QUERY_STRING": query,
        "SCRIPT_NAME": "",
    }
    given |= environ
    if body:
        given["CONTENT_LENGTH"] = str(len(body))
    setup_testing_defaults(given)
    given.setdefault("SERVER_NAME", "localhost")
    given["wsgi.input"], given["wsgi.errors"] = io.BytesIO(body), sys.stderr
    seen: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
        seen.extend((status, headers))
        return lambda data: None

    parts = validator(application)(given, start)
    try:
        sent = b"".join(parts)
    finally:
        parts.close()  # type: ignore[attr-defined]
    return Answer(int(seen[0][:3]), {name.lower(): text for name, text in seen[1]}, sent)


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, as it comes out of a tunnel."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self.path))


def get(to: Path | int, path: str = "/", **headers: str) -> Answer:
    """A request to a server on a socket or on a port; `Host` and others may be forged."""
    connection = (
        SocketConnection(to)
        if isinstance(to, Path)
        else http.client.HTTPConnection("127.0.0.1", to, timeout=60)
    )
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        found = {name.lower(): text for name, text in answer.getheaders()}
        return Answer(answer.status, found, answer.read())
    finally:
        connection.close()
