"""Post a notice by HTTP: through the environment's proxies, with TLS verified, and no redirects.

A connection passes the gate right before its request, so that a failure before the gate is known to
have sent nothing.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from detslurm.config.schema.notices import JsonNotice, NtfyNotice, SlackNotice
from detslurm.notices.event import Event, determined_body
from detslurm.notices.gate import SendGate
from detslurm.notices.log import Outcome, SendResult

# The server is busy or down, and has not taken the notice.
_LATER = frozenset({408, 425, 429, 500, 502, 503})
_READ = 400  # bytes of an answer that a message may show


def post(definition: JsonNotice | SlackNotice | NtfyNotice, event: Event, gate: SendGate,
         timeout: float) -> SendResult:  # fmt: skip
    """Send an event to a URL; what came of it."""
    url, body = _target(definition, event)
    headers = {"Content-Type": "application/json", "User-Agent": "detslurm"}
    token = None if isinstance(definition, SlackNotice) else definition.token
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    data = json.dumps(body).encode()
    try:
        asked = request.Request(url, data, headers, method="POST")
        with request.build_opener(_NoRedirects, _Gated(gate)).open(asked, timeout=timeout) as done:
            return SendResult("sent", f"HTTP {done.status}")
    except HTTPError as error:
        detail = f"HTTP {error.code}: {_text(_rest(error))}"
        return SendResult(_outcome(error.code), detail)
    except URLError as error:  # while connecting, or while the request was on its way
        outcome: Outcome = "unknown" if gate.has_passed else "later"
        return SendResult(outcome, f"{shown_host(url)}: {_reason(error.reason)}")
    except (OSError, http.client.HTTPException) as error:
        what = "timed out" if isinstance(error, TimeoutError) else type(error).__name__
        return SendResult("unknown", f"{shown_host(url)}: no answer ({what})")
    except ValueError:
        return SendResult("refused", "its URL is not valid")


def _outcome(status: int) -> Outcome:
    if status == 504:  # a gateway got no answer in time from a server that may have taken it
        return "unknown"
    return "later" if status in _LATER else "refused"


def shown_host(url: str) -> str:
    """A URL as messages show it: scheme and host, because the rest may be a secret."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}"
    except ValueError:
        return "a URL that is not valid"


def _target(
    definition: JsonNotice | SlackNotice | NtfyNotice, event: Event
) -> tuple[str, Mapping[str, Any]]:
    match definition:
        case SlackNotice():
            return definition.url, {"text": _slack_text(event)}
        case NtfyNotice():
            server, _, topic = definition.url.rstrip("/").rpartition("/")
            urgent = event.trigger == "ERROR" or event.level == "error"
            message = {"topic": topic, "title": event.headline, "message": event.text}
            return server, {**message, "priority": 4 if urgent else 3}
    return definition.url, determined_body(event)


def _slack_text(event: Event) -> str:
    text = f"{event.headline}\n{event.text}"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class _NoRedirects(request.HTTPRedirectHandler):
    """The address of a redirect is not the user's: it gets neither notice nor token."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _Gated(request.HTTPHandler, request.HTTPSHandler):
    """Makes connections that pass the gate when they are open: through a proxy's tunnel, and with
    the certificate checked."""

    def __init__(self, gate: SendGate) -> None:
        super().__init__()
        self._gate = gate

    def do_open(self, http_class: Any, req: request.Request, **options: Any) -> Any:
        def gated(*args: Any, **more: Any) -> Any:
            made = http_class(*args, **more)
            connect = made.connect

            def connect_and_enter() -> None:
                connect()
                self._gate.enter()

            made.connect = connect_and_enter
            return made

        return super().do_open(gated, req, **options)


def _rest(error: HTTPError) -> bytes:
    try:
        return error.read(_READ)
    except (OSError, http.client.HTTPException):
        return b""


def _reason(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "the connection timed out"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    if "Tunnel connection failed" in str(reason):
        return f"the proxy refused it ({str(reason).rpartition(': ')[2]})"
    return "no connection"


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else " " for char in text).strip()
