"""A server that gets notices, and behaves as badly as a test wants."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """What it got, and what it does with a request: its status, or anything else."""

    port: int = 0
    got: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    status: int = 200
    act: Callable[[BaseHTTPRequestHandler], None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks/s3cr3t-path"

    @property
    def bodies(self) -> list[Any]:
        return [body for _, _, body in self.got]


@contextmanager
def receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Such a server, for as long as the body runs."""
    seen = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.got.append((self.path, dict(self.headers), body))
            if seen.act is not None:
                seen.act(self)
                return
            self.send_response(seen.status)
            if seen.status in (301, 302, 303, 307, 308):
                self.send_header("Location", f"http://localhost:{seen.port}/elsewhere")
            self.end_headers()
            self.wfile.write(f"ok {self.path}".encode())

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        seen.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield seen
        finally:
            server.shutdown()
            thread.join()


def vanish(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection instead of an answer."""
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True
