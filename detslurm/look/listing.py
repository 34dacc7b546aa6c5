"""The page that lists experiments: plain HTML, which works without any script."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from http import HTTPStatus
from importlib import resources
from itertools import islice
from typing import Final
from urllib.parse import urlencode

from detslurm.look.live import Overview
from detslurm.look.response import Response
from detslurm.store import ExperimentRow

ROWS: Final = 200
"""How many experiments one page lists."""

# What the list has beyond the report, whose style it shares.
_OWN_STYLE = """
header.top input { width: min(320px, 60vw); }
td progress { width: 5em; vertical-align: middle; accent-color: var(--accent); }
@media print { button, td:first-child { display: none; } }
"""
# A tab that nobody looks at asks for nothing, so that a forgotten one does not keep the server.
# Sweden writes times as the page does.
_SCRIPT = """
for (const time of document.querySelectorAll("time")) {
  const local = new Date(time.dateTime).toLocaleString("sv-SE");
  time.textContent = local.slice(0, time.textContent.length);
}
document.getElementById("zone").textContent = "this browser's time zone";
setInterval(() => {
  const typing = document.activeElement.value !== undefined;
  const busy = typing || document.querySelector("input:checked");
  if (!document.hidden && !busy) location.reload();
}, 15000);
"""


@cache
def _style() -> str:
    return (resources.files("detslurm.look") / "page" / "style.css").read_text("utf-8") + _OWN_STYLE


@cache
def list_policy() -> str:
    """The content security policy of these pages: their own style and script, nothing else."""
    return (
        f"default-src 'none'; style-src {_hash(_style())}; script-src {_hash(_SCRIPT)};"
        " img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def listing(overview: Overview, text: str = "", before: int | None = None) -> str:
    """The page that lists experiments, newest first.

    Args:
        overview: The experiments.
        text: Only those with this in their id, name, owner, state or labels; by default all.
        before: Only those with smaller ids than this one; by default all.
    """
    found = list(islice(filter(chosen(text, before), overview.rows), ROWS + 1))
    more = _older(found[ROWS - 1].id, text) if len(found) > ROWS else ""
    table = _table(found[:ROWS]) if found else _NOTHING
    content = f"{_notices(overview.warnings)}<section>{table}{more}</section>"
    return _page("Experiments", _search(text), content, f", from {overview.store}")


def chosen(text: str, before: int | None) -> Callable[[ExperimentRow], bool]:
    """Whether the list shows an experiment; the arguments are those of `listing`."""
    return lambda row: (before is None or row.id < before) and _has(row, text)


def message(status: HTTPStatus, text: str) -> Response:
    """A page that says why there is nothing else to see; it looks again by itself."""
    html = _page(status.phrase, "", f'<section><p class="warning">{escape(text)}</p></section>')
    return Response(html.encode("utf-8", "replace"), list_policy(), status)


def _page(title: str, bar: str, content: str, source: str = "") -> str:
    now = time.time()
    zone = f"this machine's time zone, {time.strftime('%Z', time.localtime(now))}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,">'
        f"<style>{_style()}</style></head><body><main>"
        f'<header class="top"><h1>{escape(title)}</h1>{bar}</header>{content}'
        f"<footer>As of {_time(now, ':%S')}{escape(source)}. Times are in"
        f' <span id="zone">{escape(zone)}</span>. The queue is asked at most every 30 seconds.'
        f"</footer></main><script>{_SCRIPT}</script></body></html>\n"
    )


def _has(row: ExperimentRow, text: str) -> bool:
    fields = (str(row.id), row.name, row.owner, row.state, *row.labels)
    return all(any(word in field.lower() for field in fields) for word in text.lower().split())


def _search(text: str) -> str:
    return (
        '<form class="bar" role="search"><input type="search" name="q" aria-label="Search"'
        f' placeholder="name, owner, state, label" value="{escape(text)}">'
        "<button>Search</button></form>"
    )


def _older(last: int, text: str) -> str:
    fields = {"before": str(last), **({"q": text} if text else {})}
    return f'<p><a href="?{escape(urlencode(fields))}">Older experiments</a></p>'


def _notices(warnings: Sequence[str]) -> str:
    return "".join(f'<p class="warning">{escape(text)}</p>' for text in warnings)


_NOTHING = '<p class="nothing">There are no such experiments.</p>'
_COLUMNS = ("", "ID", "Name", "Owner", "State", "Progress", "Trials", "Best", "Started", "Ended")
_NUMBERS = {"ID", "Trials", "Best"}


def _table(rows: Iterable[ExperimentRow]) -> str:
    heads = "".join(_cell("th", name, right=name in _NUMBERS) for name in _COLUMNS)
    lines = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    return (
        '<form action="experiments"><div class="scroll"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
        '<p class="bar"><button>Compare what is ticked</button></p></form>'
    )


def _cells(row: ExperimentRow) -> Iterable[str]:
    name, state = escape(row.name), escape(row.state)
    yield _cell("td", f'<input type="checkbox" name="id" value="{row.id}" aria-label="{row.id}">')
    yield _cell("td", str(row.id), right=True)
    link = f'<a href="experiments/{row.id}/">{name or f"experiment {row.id}"}</a>'
    yield f'<td title="{name}">{link}</td>'
    yield _cell("td", escape(row.owner))
    yield _cell("td", f'<span class="badge {state.lower()}">{state}</span>')
    share = min(max(row.progress, 0.0), 1.0)
    yield _cell("td", f'<progress value="{share:.3f}"></progress> {share:.0%}')
    yield _cell("td", str(row.trial_count), right=True)
    yield _cell("td", _best(row), right=True)
    yield _cell("td", _time(row.started))
    yield _cell("td", _time(row.ended))


def _cell(tag: str, html: str, *, right: bool = False) -> str:
    return f'<{tag} class="right">{html}</{tag}>' if right else f"<{tag}>{html}</{tag}>"


def _best(row: ExperimentRow) -> str:
    if row.best_value is None:
        return ""
    return f'<span title="{escape(row.metric or "")}">{row.best_value:.4g}</span>'


def _time(seconds: float | None, more: str = "") -> str:
    """A moment in this machine's time zone, with what the script needs to give the reader's."""
    if seconds is None:
        return ""
    exact = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    shown = time.strftime(f"%Y-%m-%d %H:%M{more}", time.localtime(seconds))
    return f'<time datetime="{exact}">{shown}</time>'
