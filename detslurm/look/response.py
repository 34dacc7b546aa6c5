"""A response to a browser: never stored, never taken for something else, compressed."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Final
from wsgiref.types import StartResponse, WSGIEnvironment

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"

_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("Vary", "Accept-Encoding"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "SAMEORIGIN"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)
_WORTH_COMPRESSING = 1000
_PIECE = 1 << 16


@dataclass(frozen=True)
class Response:
    """An answer to a request. The `etag` changes with the content; `allowed` are the methods that a
    refused method could have been."""

    body: bytes
    policy: str = "default-src 'none'; frame-ancestors 'none'"
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = HTML
    more: tuple[tuple[str, str], ...] = ()
    etag: str = ""
    allowed: str = "GET, HEAD"

    @cached_property
    def compressed(self) -> bytes:
        """The body through gzip: a page is for a tunnel, and the same for all who ask soon."""
        return gzip.compress(self.body, compresslevel=3, mtime=0)


def redirect(target: str, *more: tuple[str, str]) -> Response:
    """A redirection to another page of ours, relative to the request."""
    return Response(b"", status=HTTPStatus.SEE_OTHER, more=(("Location", target), *more))


def send(
    response: Response, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    """Give a response to the server; to HEAD without its body."""
    if response.etag and environ.get("HTTP_IF_NONE_MATCH") == response.etag:
        response = Response(b"", status=HTTPStatus.NOT_MODIFIED, etag=response.etag)
    body, headers = response.body, _headers(response)
    if len(body) >= _WORTH_COMPRESSING and "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
        body = response.compressed
        headers.append(("Content-Encoding", "gzip"))
    if response.status is not HTTPStatus.NOT_MODIFIED:
        headers += [("Content-Type", response.content_type), ("Content-Length", str(len(body)))]
    start_response(f"{response.status.value} {response.status.phrase}", headers)
    # A server's patience is for one piece: a slow line takes minutes for a page.
    pieces = (body[at : at + _PIECE] for at in range(0, len(body), _PIECE))
    return [] if environ["REQUEST_METHOD"] == "HEAD" else pieces


def _headers(response: Response) -> list[tuple[str, str]]:
    headers = [*_HEADERS, *response.more, ("Content-Security-Policy", response.policy)]
    if response.etag:
        headers.append(("ETag", response.etag))
    if response.status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", response.allowed))
    return headers
