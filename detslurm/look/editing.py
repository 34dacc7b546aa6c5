"""The page that changes notes, labels and archiving of an experiment.

Nothing else can be written from the pages. A form holds the token of its server, which other sites'
pages can't read and so can't send.
"""

from __future__ import annotations

from html import escape
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import parse_qs
from wsgiref.types import WSGIEnvironment

from detslurm.look.listing import list_policy, page_html
from detslurm.look.response import Response
from detslurm.sdk.experiments.experiment import Experiment
from detslurm.store import ExperimentRow

TOKEN: Final = "form"
_MOST_BYTES: Final = 1 << 20


class Edit(NamedTuple):
    """The values of a form, with the token of the server whose page it was."""

    token: str
    notes: str
    labels: tuple[str, ...]
    archived: bool


def edit_page(row: ExperimentRow, token: str) -> Response:
    """Return the page with the form, filled in with the present values and this server's token."""
    ticked = " checked" if row.archived else ""
    hint = "" if row.finished or row.archived else " (once it has ended)"
    content = (
        f'<section><form method="post" class="edit still"><input type="hidden" name="{TOKEN}"'
        f' value="{escape(token)}"><label>Notes<textarea name="notes" rows="8">'
        f"\n{escape(row.notes)}</textarea></label>"
        '<label>Labels, one a line<textarea name="labels" rows="4">'
        f"\n{escape(chr(10).join(row.labels))}</textarea></label>"
        f'<label class="tick"><input type="checkbox" name="archived" value="1"{ticked}>'
        f"Archived: lists leave it out{hint}</label>"
        '<p class="bar"><button>Save</button> <a href="./">Cancel</a></p></form></section>'
    )
    html = page_html(f"Experiment {row.id}: {row.name}", "", content)
    return Response(html.encode("utf-8", "replace"), list_policy())


def read_edit(environ: WSGIEnvironment) -> Edit | None:
    """Read a form that was sent; None if it is no form of these pages."""
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isascii() or not length.isdigit() or int(length) > _MOST_BYTES:
        return None
    try:
        text = environ["wsgi.input"].read(int(length)).decode()
        fields = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=10)
    except ValueError:
        return None
    if not {TOKEN, "notes", "labels"} <= fields.keys():
        return None
    notes, labels = (fields[name][0].replace("\r\n", "\n") for name in ("notes", "labels"))
    named = tuple(dict.fromkeys(line.strip() for line in labels.split("\n") if line.strip()))
    return Edit(fields[TOKEN][0], notes, named, "archived" in fields)


def apply_edit(experiment: Experiment, edit: Edit) -> None:
    """Record what differs, as the commands of these names do.

    Raises `LifecycleError` if it belongs to another user, has not ended, or the text is not
    printable; `StoreError` if the store can't be written.
    """
    if edit.archived and not experiment.archived:
        experiment.archive()  # first: it is the change that may be refused
    if not edit.archived and experiment.archived:
        experiment.unarchive()
    if edit.notes != experiment.notes:
        experiment.set_notes(edit.notes)
    if set(edit.labels) != experiment.labels:
        experiment.set_labels(edit.labels)


REFUSED: Final = HTTPStatus.FORBIDDEN, "This form is of another server: open the page again."
