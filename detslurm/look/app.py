"""The pages of a store as a WSGI application: read-only, below any prefix, with relative links.

    /                               the experiments
    /experiments/ID/                the report of one, or of several: ID,ID
    /experiments/ID/snapshot.json   its data, which the page asks for again and again

Who may ask is decided outside of it: see `detslurm.look.access`.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, quote, unquote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec

from detslurm.look.listing import ROWS, chosen, list_policy, listing, message
from detslurm.look.live import AnswerMemory, Connect, LiveStore, Overview, StoreMissing
from detslurm.look.response import JSON, Response, redirect, send
from detslurm.sdk.errors import LifecycleError
from detslurm.store import NotFound, StoreError

MOST_IDS: Final = 20
"""How many experiments one page may show."""

# What a page that brings its own policy can't say in its head.
_PAGE_POLICY = "frame-ancestors 'self'; base-uri 'none'; form-action 'none'; object-src 'none'"
_ID = "[1-9][0-9]{0,14}"
_EXPERIMENTS = re.compile(f"/experiments/({_ID}(?:,{_ID})*)(|/|/snapshot[.]json)")


def application(connect: Connect, clock: Callable[[], float] = time.monotonic) -> WSGIApplication:
    """Return a WSGI application that shows the experiments of a store.

    It answers GET and HEAD, whoever asks, and may be called by several threads at once. The queue
    is asked at most every 30 seconds.

    Args:
        connect: Returns a client of the store; called for each reading.
        clock: Gives seconds that never go back.

    Example:
        from wsgiref.simple_server import make_server

        from detslurm.look.app import application
        from detslurm.sdk import Client

        with make_server("127.0.0.1", 0, application(Client)) as server:
            assert server.server_port
    """
    return _Pages(connect, clock)


class _Pages:
    """The application of one store."""

    def __init__(self, connect: Connect, clock: Callable[[], float]) -> None:
        self._store = LiveStore(connect, clock)
        self._overviews: AnswerMemory[Overview] = AnswerMemory(clock)
        self._responses: AnswerMemory[Response] = AnswerMemory(clock)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        return send(self._answer(environ), environ, start_response)

    def _answer(self, environ: WSGIEnvironment) -> Response:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return message(HTTPStatus.METHOD_NOT_ALLOWED, "This is for reading only.")
        path = environ.get("PATH_INFO") or "/"
        answer = _message_as_json if path.endswith(".json") else message
        try:
            return self._page(path, environ)
        except StoreMissing as error:
            return answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except NotFound as error:
            return answer(HTTPStatus.NOT_FOUND, str(error))
        except (StoreError, LifecycleError, OSError) as error:
            return answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            text = "This could not be shown; the terminal where it runs says why."
            return answer(HTTPStatus.INTERNAL_SERVER_ERROR, text)

    def _page(self, path: str, environ: WSGIEnvironment) -> Response:
        if _lacks_slash(environ):  # which relative links need
            last = _prefix(environ).rpartition("/")[2]
            return redirect(f"./{quote(last, encoding='latin-1')}/")  # as PEP 3333 has its bytes
        if path == "/":
            return self._list(environ.get("QUERY_STRING", ""))
        if path == "/experiments":
            return _chosen(environ.get("QUERY_STRING", ""))
        match = _EXPERIMENTS.fullmatch(path)
        if match is None:
            return message(HTTPStatus.NOT_FOUND, "There is no such page.")
        ids = [int(number) for number in dict.fromkeys(match[1].split(","))]
        if len(ids) > MOST_IDS:
            return message(HTTPStatus.NOT_FOUND, f"At most {MOST_IDS} experiments fit on a page.")
        if match[2] == "":
            return redirect(f"{match[1]}/")
        make = self._data if match[2] == "/snapshot.json" else self._report
        return self._responses.get(path, lambda: make(ids))

    def _list(self, query: str) -> Response:
        fields = _fields(query)
        text, before = fields.get("q", [""])[0], fields.get("before", [""])[0]
        last = int(before) if re.fullmatch(_ID, before) else None
        wanted = chosen(text, last)
        overview = self._overviews.get(
            f"{last} {text}", lambda: self._store.overview(wanted, ROWS + 1)
        )
        return Response(listing(overview, text, last).encode("utf-8", "replace"), list_policy())

    def _report(self, ids: list[int]) -> Response:
        from detslurm.look.report import page

        html = page(self._store.snapshot(ids), live=True)
        return Response(html.encode("utf-8", "replace"), _PAGE_POLICY)

    def _data(self, ids: list[int]) -> Response:
        from detslurm.look.packing import packed
        from detslurm.look.snapshot import encode

        found = packed(self._store.snapshot(ids))
        timeless = encode(msgspec.structs.replace(found, taken=0.0))
        etag = f'W/"{hashlib.sha256(timeless).hexdigest()[:32]}"'
        return Response(encode(found), content_type=JSON, etag=etag)


def _lacks_slash(environ: WSGIEnvironment) -> bool:
    """Whether the prefix alone was asked for; of Passenger only the whole address tells that."""
    path, prefix = environ.get("PATH_INFO", ""), _prefix(environ)
    if path == "":
        return bool(prefix) and environ["SCRIPT_NAME"] == prefix
    address, _, _ = environ.get("REQUEST_URI", "").partition("?")
    return bool(path == "/" and prefix and unquote(address, "latin-1") == prefix)


def _prefix(environ: WSGIEnvironment) -> str:
    """What stands before all paths; some servers have it end in a slash, or be only that."""
    prefix: str = environ.get("SCRIPT_NAME", "")
    return prefix.rstrip("/")


def _chosen(query: str) -> Response:
    """The page of the experiments whose boxes were ticked in the list."""
    ids = [number for number in _fields(query).get("id", []) if re.fullmatch(_ID, number)]
    return redirect(f"experiments/{','.join(ids)}/" if ids else "./")


def _fields(query: str) -> dict[str, list[str]]:
    try:
        return parse_qs(query, max_num_fields=100)
    except ValueError:  # more fields than any page of ours sends
        return {}


def _message_as_json(status: HTTPStatus, text: str) -> Response:
    return Response(json.dumps({"error": text}).encode(), status=status, content_type=JSON)
