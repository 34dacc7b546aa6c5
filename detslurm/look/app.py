"""The pages of a store as a WSGI application, below any prefix, with relative links.

    /                               the experiments
    /experiments/ID/                the report of an experiment, or of several: ID,ID
    /experiments/ID/snapshot.json   its data, which the page asks for again and again
    /experiments/ID/edit            its notes, labels, and whether it is archived; with a token only

Access is decided outside of it: see `detslurm.look.access`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, quote, unquote
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec

from detslurm.look.editing import REFUSED, apply_edit, edit_page, read_edit
from detslurm.look.listing import CONDITIONS, ROWS, Choice, list_policy, listing, message
from detslurm.look.live import AnswerMemory, Connect, LiveStore, Overview, StoreMissing
from detslurm.look.packing import packed
from detslurm.look.report import page
from detslurm.look.response import JSON, Response, redirect, send
from detslurm.look.snapshot import encode
from detslurm.sdk.errors import LifecycleError
from detslurm.store import NotFound, StoreError

MOST_IDS: Final = 20
"""How many experiments one page may show."""

# Policies that a page can't give in its head.
_PAGE_POLICY = "frame-ancestors 'self'; base-uri 'none'; form-action 'none'; object-src 'none'"
_ID = "[1-9][0-9]{0,14}"
_EDITED = re.compile(f"/experiments/({_ID})/edit")
_EXPERIMENTS = re.compile(f"/experiments/({_ID}(?:,{_ID})*)(|/|/snapshot[.]json)")


def application(
    connect: Connect, clock: Callable[[], float] = time.monotonic, *, token: str = ""
) -> WSGIApplication:
    """Return a WSGI application that shows the experiments of a store; `connect` gives its client.

    It answers GET and HEAD of any client, and may be called by several threads at once. The queue
    is asked at most every 30 seconds. The forms of its pages carry the secret `token`: with it, a
    POST sets notes, labels and whether an experiment is archived. Without a token nothing can be
    written. The `clock` gives seconds that never go back.

    Example:
        from wsgiref.simple_server import make_server

        from detslurm.look.app import application
        from detslurm.sdk import Client

        with make_server("127.0.0.1", 0, application(Client)) as server:
            assert server.server_port
    """
    return _Pages(connect, clock, token)


class _Pages:
    """The application of one store."""

    def __init__(self, connect: Connect, clock: Callable[[], float], token: str) -> None:
        self._token = token
        self._store = LiveStore(connect, clock)
        self._overviews: AnswerMemory[Overview] = AnswerMemory(clock)
        self._responses: AnswerMemory[Response] = AnswerMemory(clock)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        return send(self._answer(environ), environ, start_response)

    def _answer(self, environ: WSGIEnvironment) -> Response:
        path = environ.get("PATH_INFO") or "/"
        edited = _EDITED.fullmatch(path) if self._token else None
        reads = environ["REQUEST_METHOD"] in ("GET", "HEAD")
        if not reads and (edited is None or environ["REQUEST_METHOD"] != "POST"):
            refused = message(HTTPStatus.METHOD_NOT_ALLOWED, "This is for reading only.")
            return replace(refused, allowed="GET, HEAD, POST") if edited is not None else refused
        answer = _message_as_json if path.endswith(".json") else message
        try:
            if edited is not None:
                return self._edit(int(edited[1]), None if reads else environ)
            return self._page(path, environ)
        except StoreMissing as error:
            return answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except NotFound as error:
            return answer(HTTPStatus.NOT_FOUND, str(error))
        except (StoreError, LifecycleError, OSError) as error:
            return answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            text = "This could not be shown; the terminal where it runs has the reason."
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
        choice = _choice(query)
        overview = self._overviews.get(
            choice._replace(by_project=False).query,
            lambda: self._store.overview(
                choice.shows, ROWS + 1, archived=choice.state == "archived"
            ),
        )
        html = listing(overview, choice, editable=bool(self._token))
        return Response(html.encode("utf-8", "replace"), list_policy())

    def _edit(self, number: int, sent: WSGIEnvironment | None) -> Response:
        """The form for an experiment, or what its sending has done."""
        if sent is None:
            return edit_page(self._store.stored(number).row, self._token)
        edit = read_edit(sent)
        if edit is None or not hmac.compare_digest(edit.token.encode(), self._token.encode()):
            return message(*REFUSED, still=True)
        try:
            apply_edit(self._store.stored(number), edit)
        except LifecycleError as error:
            return message(HTTPStatus.CONFLICT, str(error), still=True)
        self._overviews.clear()
        self._responses.clear()
        return redirect("../../")

    def _report(self, ids: list[int]) -> Response:
        editable = bool(self._token) and len(ids) == 1
        html = page(self._store.snapshot(ids), live=True, editable=editable)
        return Response(html.encode("utf-8", "replace"), _PAGE_POLICY)

    def _data(self, ids: list[int]) -> Response:
        found = packed(self._store.snapshot(ids))
        timeless = encode(msgspec.structs.replace(found, taken=0.0))
        etag = f'W/"{hashlib.sha256(timeless).hexdigest()[:32]}"'
        return Response(encode(found), content_type=JSON, etag=etag)


def _lacks_slash(environ: WSGIEnvironment) -> bool:
    """Whether the prefix alone was asked for; of Passenger only the whole address shows that."""
    path, prefix = environ.get("PATH_INFO", ""), _prefix(environ)
    if path == "":
        return bool(prefix) and environ["SCRIPT_NAME"] == prefix
    address, _, _ = environ.get("REQUEST_URI", "").partition("?")
    return bool(path == "/" and prefix and unquote(address, "latin-1") == prefix)


def _prefix(environ: WSGIEnvironment) -> str:
    """The prefix of all paths; some servers have it end in a slash, or be only that."""
    prefix: str = environ.get("SCRIPT_NAME", "")
    return prefix.rstrip("/")


def _choice(query: str) -> Choice:
    """Read the filter from an address; a value that can't be understood counts as not given."""
    fields = {name: values[0] for name, values in _fields(query).items()}
    before, state = fields.get("before", ""), fields.get("state", "")
    return Choice(
        text=fields.get("q", ""),
        before=int(before) if re.fullmatch(_ID, before) else None,
        state=state if state in CONDITIONS else "",
        by_project=fields.get("group") == "project",
    )


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
