"""Access rules: checks that stand before a WSGI application.

A browser sends requests to `localhost` for any page that it shows, also for one whose own name was
made to lead there (DNS rebinding): only the Host header distinguishes these from the user's.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from detslurm.look.listing import message
from detslurm.look.response import redirect, send

TOKEN_FIELD: Final = "token"

_OWN_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


def for_own_host(application: WSGIApplication) -> WSGIApplication:
    """Answer only requests by this machine's own names: localhost or 127.0.0.1.

    Background requests of other sites' pages are refused, too.
    """

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if _OWN_HOST.fullmatch(environ.get("HTTP_HOST", "")) and not _is_background(environ):
            return application(environ, start_response)
        text = "Open this under the name localhost, which the address that was printed has."
        return send(message(HTTPStatus.FORBIDDEN, text), environ, start_response)

    return checked


def for_token(application: WSGIApplication, token: str) -> WSGIApplication:
    """Answer only those who know the token: first from the address, then from a cookie."""
    # Cookies are the same for all ports of a host: another server has another name for its own.
    name = f"detslurm-{hashlib.sha256(token.encode()).hexdigest()[:12]}"
    cookie = ("Set-Cookie", f"{name}={token}; Path=/; HttpOnly; SameSite=Lax")

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if _same(_cookie(environ, name), token):
            return application(environ, start_response)
        if _same(_asked(environ), token):  # and out of the address, which histories keep
            return send(redirect("./", cookie), environ, start_response)
        text = "Open the whole address that was printed where `detslurm ui` runs: it has a secret."
        return send(message(HTTPStatus.FORBIDDEN, text), environ, start_response)

    return checked


def _is_background(environ: WSGIEnvironment) -> bool:
    """Whether a page of another site asks without its reader: it can't read, but keep us busy."""
    site, mode = environ.get("HTTP_SEC_FETCH_SITE"), environ.get("HTTP_SEC_FETCH_MODE")
    return site == "cross-site" and mode != "navigate"


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _cookie(environ: WSGIEnvironment, name: str) -> str:
    """Ours among all that other programs on this host have set, in whatever form."""
    pairs = (one.partition("=") for one in environ.get("HTTP_COOKIE", "").split(";"))
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "")


def _asked(environ: WSGIEnvironment) -> str:
    try:
        fields = parse_qs(environ.get("QUERY_STRING", ""), max_num_fields=10)
    except ValueError:
        return ""
    return str(fields.get(TOKEN_FIELD, [""])[0])
