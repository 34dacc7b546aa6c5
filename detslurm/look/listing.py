"""The page that lists experiments: plain HTML, which works without any script."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from http import HTTPStatus
from importlib import resources
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import urlencode

from detslurm._base.states import FINISHED
from detslurm.look.live import Overview
from detslurm.look.response import Response
from detslurm.store import ExperimentRow

ROWS: Final = 200
"""How many experiments one page lists."""

# The list's rules beyond the report, whose style it shares.
_OWN_STYLE = """
header.top input[type="search"] { width: min(320px, 60vw); }
td progress { width: 5em; vertical-align: middle; accent-color: var(--accent); }
.chips { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0; }
.chips a { border: 1px solid var(--line); border-radius: 999px; padding: 1px 10px; }
.chips a { text-decoration: none; }
.chips a[aria-current] { background: var(--accent); color: var(--surface); }
tr.project th { background: var(--page); padding-top: 10px; }
td .note { font-size: 12px; margin: 0; }
td.name { white-space: normal; overflow-wrap: anywhere; max-width: 44ch; }
.edit label { display: block; margin: 8px 0; }
.edit textarea { display: block; width: 100%; font: inherit; color: inherit; padding: 6px 8px;
  background: var(--surface); border: 1px solid var(--line); border-radius: 6px; }
@media (max-width: 700px) {
  .wide, td.name code, td progress { display: none; }
  th, td { padding: 5px 4px; max-width: 40vw; }
  td.right .note { display: block; }
}
@media print { button, td:first-child { display: none; } }
"""
# A hidden tab asks for nothing, so that a forgotten one does not keep the server.
# Sweden writes times as the page does.
_SCRIPT = """
for (const time of document.querySelectorAll("time")) {
  const local = new Date(time.dateTime).toLocaleString("sv-SE");
  time.textContent = local.slice(0, time.textContent.length);
}
document.getElementById("zone").textContent = "this browser's time zone";
setInterval(() => {
  const typing = document.activeElement.value !== undefined;
  const busy = typing || document.querySelector("input:checked, .still");
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


class Choice(NamedTuple):
    """The filter and the order of the list: words that stand in an experiment's fields, ids smaller
    than `before`, a key of `CONDITIONS`, and whether those of a project stand together."""

    text: str = ""
    before: int | None = None
    state: str = ""
    by_project: bool = False

    def shows(self, row: ExperimentRow) -> bool:
        """Whether the list shows an experiment."""
        older = self.before is None or row.id < self.before
        return older and self.state in ("", condition(row)) and _has(row, self.text)

    @property
    def query(self) -> str:
        """The address of this list, from a question mark."""
        fields = {
            "q": self.text,
            "state": self.state,
            "group": "project" if self.by_project else "",
            "before": str(self.before or ""),
        }
        return "?" + urlencode({name: value for name, value in fields.items() if value})


CONDITIONS: Final = {
    "running": "Running",
    "queued": "Queued",
    "paused": "Paused",
    "completed": "Completed",
    "failed": "Failed",
    "canceled": "Canceled",
    "archived": "Archived",
}
"""Conditions of experiments that the list can be limited to, with their titles."""

_ON_NODES = {"RUNNING", "STARTING", "PULLING"}


def condition(row: ExperimentRow) -> str:
    """The condition of an experiment; if it is active, whether any of its trials runs."""
    if row.archived:
        return "archived"
    if row.state == "ACTIVE":
        return "running" if _ON_NODES & row.trial_states.keys() else "queued"
    return {"ERROR": "failed"}.get(row.state, row.state.lower())


def listing(overview: Overview, choice: Choice | None = None, *, editable: bool = False) -> str:
    """The page that lists experiments, newest first; `editable` adds links to the pages that change
    them."""
    choice = choice or Choice()
    found = list(islice(filter(choice.shows, overview.rows), ROWS + 1))
    more = _older(found[ROWS - 1].id, choice) if len(found) > ROWS else ""
    table = _table(found[:ROWS], choice, editable) if found else _NOTHING
    content = f"{_notices(overview.warnings)}{_chips(choice)}<section>{table}{more}</section>"
    return page_html("Experiments", _search(choice), content, f", from {overview.store}")


def message(status: HTTPStatus, text: str, *, still: bool = False) -> Response:
    """A page with the reason why there is nothing else; it looks again by itself unless `still`.

    An answer to a form is still: to load it again would send the form again.
    """
    kind = "warning still" if still else "warning"
    html = page_html(status.phrase, "", f'<section><p class="{kind}">{escape(text)}</p></section>')
    return Response(html.encode("utf-8", "replace"), list_policy(), status)


def page_html(title: str, bar: str, content: str, source: str = "") -> str:
    """A page of this kind: `bar` is HTML beside the title, `content` below it, and `source` ends
    the footer."""
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
    folder = f"{row.workspace}/{row.project}"
    fields = (str(row.id), row.name, row.owner, row.state, condition(row), folder, *row.labels)
    return all(any(word in field.lower() for field in fields) for word in text.lower().split())


def _search(choice: Choice) -> str:
    kept = "".join(
        f'<input type="hidden" name="{name}" value="{value}">'
        for name, value in (
            ("state", choice.state),
            ("group", "project" if choice.by_project else ""),
        )
        if value
    )
    return (
        '<form class="bar" role="search"><input type="search" name="q" aria-label="Search"'
        f' placeholder="name, owner, state, project, label" value="{escape(choice.text)}">{kept}'
        "<button>Search</button></form>"
    )


def _chips(choice: Choice) -> str:
    """Links to the same list in one condition, and to the list by project."""
    first = choice._replace(before=None)
    links = [
        _chip(title, first._replace(state=state), current=state == choice.state)
        for state, title in {"": "All", **CONDITIONS}.items()
    ]
    other = first._replace(by_project=not choice.by_project)
    links.append(_chip("By project", other, current=choice.by_project))
    return f'<nav class="chips" aria-label="Show">{"".join(links)}</nav>'


def _chip(title: str, target: Choice, *, current: bool) -> str:
    mark = ' aria-current="true"' if current else ""
    return f'<a href="{escape(target.query)}"{mark}>{title}</a>'


def _older(last: int, choice: Choice) -> str:
    target = choice._replace(before=last).query
    return f'<p><a href="{escape(target)}">Older experiments</a></p>'


def _notices(warnings: Sequence[str]) -> str:
    return "".join(f'<p class="warning">{escape(text)}</p>' for text in warnings)


_NOTHING = '<p class="nothing">There are no such experiments.</p>'
_COLUMNS = ("", "ID", "Name", "Owner", "State", "Progress", "Trials", "Best", "Started", "Ended")
_NUMBERS = {"ID", "Best"}
_WIDE = {"", "Owner", "Trials", "Started", "Ended"}  # not on a phone


def _table(rows: Sequence[ExperimentRow], choice: Choice, editable: bool) -> str:
    heads = "".join(
        _cell("th", name, right=name in _NUMBERS, wide=name in _WIDE) for name in _COLUMNS
    )
    return (
        '<form action="experiments"><div class="scroll"><table>'
        f"<thead><tr>{heads}</tr></thead>{_bodies(rows, choice, editable)}</table></div>"
        '<p class="bar wide"><button>Compare selected</button></p></form>'
    )


def _bodies(rows: Sequence[ExperimentRow], choice: Choice, editable: bool) -> str:
    """The rows; by project with the newest project first."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        title = f"{row.workspace} / {row.project}" if choice.by_project else ""
        line = f"<tr>{''.join(_cells(row, editable))}</tr>"
        groups.setdefault(title, []).append(line)
    span = len(_COLUMNS)
    return "".join(
        "<tbody>"
        + (f'<tr class="project"><th colspan="{span}">{escape(title)}</th></tr>' if title else "")
        + "".join(lines)
        + "</tbody>"
        for title, lines in groups.items()
    )


def _cells(row: ExperimentRow, editable: bool) -> Iterable[str]:
    name = escape(row.name)
    tick = f'<input type="checkbox" name="id" value="{row.id}" aria-label="{row.id}">'
    yield _cell("td", tick, wide=True)
    yield _cell("td", str(row.id), right=True)
    link = f'<a href="experiments/{row.id}/">{name or f"experiment {row.id}"}</a>'
    labels = "".join(f" <code>{escape(label)}</code>" for label in row.labels)
    edit = f' <a class="note" href="experiments/{row.id}/edit">edit</a>' if editable else ""
    title = escape(f"{row.name}\n{row.notes}" if row.notes else row.name)
    yield f'<td class="name" title="{title}">{link}{labels}{edit}</td>'
    yield _cell("td", escape(row.owner), wide=True)
    state = condition(row).upper() if row.state == "ACTIVE" else row.state
    badge = escape(state)
    yield _cell("td", f'<span class="badge {badge.lower()}">{badge}</span>')
    share = min(max(row.progress, 0.0), 1.0)
    yield _cell("td", f'<progress value="{share:.3f}"></progress> {share:.0%}')
    yield _cell("td", _trials(row), wide=True)
    yield _cell("td", _best(row), right=True)
    yield _cell("td", _time(row.started), wide=True)
    yield _cell("td", _time(row.ended), wide=True)


def _trials(row: ExperimentRow) -> str:
    """How many there are, and of an unfinished experiment how many run and wait."""
    if row.finished:
        return str(row.trial_count)
    states = row.trial_states
    over = sum(states.get(state, 0) for state in FINISHED)
    parts = {"running": sum(states.get(state, 0) for state in _ON_NODES)}
    parts["queued"] = states.get("QUEUED", 0)
    shown = [f"{count} {word}" for word, count in parts.items() if count]
    return ", ".join([*shown, f"{over}/{row.trial_count}"])


def _cell(tag: str, html: str, *, right: bool = False, wide: bool = False) -> str:
    """A cell; a wide cell is left out on a phone."""
    names = " ".join(name for name, on in (("right", right), ("wide", wide)) if on)
    return f'<{tag} class="{names}">{html}</{tag}>' if names else f"<{tag}>{html}</{tag}>"


def _best(row: ExperimentRow) -> str:
    if row.best_value is None:
        return ""
    metric = f' <span class="note">{escape(row.metric)}</span>' if row.metric else ""
    return f"{row.best_value:.4g}{metric}"


def _time(seconds: float | None, more: str = "") -> str:
    """A moment in this machine's time zone, with what the script needs to give the reader's."""
    if seconds is None:
        return ""
    exact = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    shown = time.strftime(f"%Y-%m-%d %H:%M{more}", time.localtime(seconds))
    return f'<time datetime="{exact}">{shown}</time>'
