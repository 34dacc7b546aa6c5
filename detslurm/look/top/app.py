"""The application behind `detslurm top`; needs textual, so others import it where they use it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeVar

from rich.cells import cell_len
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.notifications import SeverityLevel
from textual.widget import Widget
from textual.widgets import ContentSwitcher, DataTable, Footer, Input, Static

from detslurm.look.canvas import letter
from detslurm.look.plot import COLORS, PlotFormat, draw
from detslurm.look.top import cells
from detslurm.look.top.cells import Rows
from detslurm.look.top.dialogs import BOX, TextScreen
from detslurm.look.top.reader import Reader
from detslurm.look.top.watcher import PAGES, Page, Request, TopView, Watcher
from detslurm.sdk.client import Client
from detslurm.sdk.errors import LifecycleError
from detslurm.slurm import SlurmError
from detslurm.store import StoreError

_COLUMNS: dict[str, Sequence[str]] = {
    "experiments": cells.EXPERIMENTS,
    "trials": cells.TRIALS,
    "checkpoints": cells.CHECKPOINTS,
    "queue": cells.QUEUE,
}
_QUESTIONS = {
    "pause": "Pause {what}? Running trials save a checkpoint and free their nodes. Code that never"
    " calls should_preempt() trains on until it is killed, after preemption_timeout.",
    "activate": "Activate {what}? Held jobs are released, and lost jobs are queued again.",
    "cancel": "Cancel {what}? Running trials save a checkpoint. Code that never calls"
    " should_preempt() trains on until it is killed, after preemption_timeout."
    " This can't be undone.",
    "kill": "Kill {what}? Its jobs end at once, and what no checkpoint holds is lost."
    " This can't be undone.",
}
_DONE = {
    "pause": "Paused experiment",
    "activate": "Activated experiment",
    "cancel": "Canceled experiment",
    "kill": "Killed experiment",
}
_STALLED_SECONDS = 5.0
T = TypeVar("T")


class TopApp(App[None]):
    """Experiments above, a page of the one under the cursor below.

    `acting` makes the client that changes experiments; it gets where its warnings go.
    """

    TITLE = "detslurm top"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    #experiments {{ height: auto; min-height: 3; max-height: 40%; }}
    #below {{ height: 1fr; }}
    #pages, #title, #status {{ height: 1; }}
    #pages {{ background: $primary; color: $text; }}
    #curves {{ text-wrap: nowrap; text-overflow: ellipsis; }}
    #title {{ text-style: bold; }}
    #status {{ color: $text-muted; }}
    #search {{ display: none; height: 1; border: none; }}
    DataTable {{ height: 1fr; }}
    {BOX}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *[Binding(str(n), f"page('{page}')", page, show=False) for n, page in enumerate(PAGES, 1)],
        Binding("tab", "focus_other", "Other half", priority=True),
        Binding("slash", "search", "Filter", priority=True),
        Binding("m", "metric", "Metric", show=False),  # the page's title names it
        ("p", "change('pause')", "Pause"),
        ("a", "change('activate')", "Activate"),
        ("c", "change('cancel')", "Cancel"),
        ("k", "change('kill')", "Kill"),
        ("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, watcher: Watcher, acting: Callable[[Callable[[str], None]], Client]) -> None:
        super().__init__()
        self._reader = Reader(
            watcher.poll,
            lambda view: self._later(self._show_view, view),
            lambda error: self._later(self._fail, error),
        )
        self._acting = acting
        self._request = Request()
        self._view = TopView(self._request)

    def compose(self) -> ComposeResult:
        """The two halves, their details, and the keys."""
        yield _table("experiments")
        yield Static(id="pages")
        yield Static(id="title")
        with ContentSwitcher(initial="trials", id="below"):
            yield _table("trials")
            yield Static(id="curves")
            with VerticalScroll(id="log"):
                yield Static(id="lines")
            yield _table("checkpoints")
            yield _table("queue")
        yield Input(placeholder="words in id, name, state, owner or label", id="search")
        yield Static(id="status")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self._name_pages()
        self.query_one("#experiments").focus()
        self.query_one("#status", Static).update("reading ...")
        self._reader.start()
        self.set_interval(_STALLED_SECONDS, self._watch_reader)

    def on_unmount(self) -> None:
        """Stop looking."""
        self._reader.stop()

    def _later(self, act: Callable[[T], None], value: T) -> None:
        """From another thread; it has no listener once the application ends."""
        if self.is_running:
            self.call_later(act, value)

    # -- showing -----------------------------------------------------------------------------------

    def _show_view(self, view: TopView) -> None:
        if not self.is_running:
            return  # the application ends: the widgets are gone before the last callbacks
        before, self._view = self._view, view
        if view.experiments != before.experiments:
            _fill(self._table("experiments"), view.experiments)
        if view.request.page == self._request.page:
            self._show_page(view, before)
        self._say_status()

    def _fail(self, error: Exception) -> None:
        """End with a fault of ours."""
        raise error

    def _show_page(self, view: TopView, before: TopView) -> None:
        page = view.request.page
        self.query_one("#title", Static).update(Text(view.title, no_wrap=True))
        if page == "curves":
            self._draw(view)
        elif page == "log":
            if view.log != before.log or before.request.page != "log":
                self._write_log(view.log)
        else:
            _fill(self._table(page), view.rows)

    def _draw(self, view: TopView) -> None:
        area = self.query_one("#below").size
        height = max(area.height - len(view.legend), 6)
        text = Text(no_wrap=True)
        for row in draw(view.curves, PlotFormat(max(area.width, 40), height)):
            for piece, series in row:
                text.append(piece, style=_color(series))
            text.append("\n")
        for place, line in enumerate(view.legend):
            text.append(letter(place), style=_color(place))
            text.append(f" {line}\n")
        self.query_one("#curves", Static).update(text)

    def _write_log(self, lines: Sequence[str]) -> None:
        scroll = self.query_one("#log", VerticalScroll)
        at_end = scroll.scroll_offset.y >= scroll.max_scroll_y
        self.query_one("#lines", Static).update(Text("\n".join(lines)))
        if at_end:
            scroll.call_after_refresh(scroll.scroll_end, animate=False)

    def _say_status(self) -> None:
        view = self._view
        asked = view.queue_time
        parts = [f"read {time.strftime('%H:%M:%S')}"]
        parts += [f"queue {time.strftime('%H:%M:%S', time.localtime(asked))}"] if asked else []
        parts += [f"filter {self._request.search!r}"] if self._request.search else []
        parts += [f"{view.hidden} more experiments: / finds them"] if view.hidden else []
        if (seconds := self._reader.busy_seconds) >= _STALLED_SECONDS:
            parts = [f"no answer for {seconds:.0f} seconds; the tables are older"]
        text = Text("  ".join([*view.problems, *parts]), no_wrap=True, overflow="ellipsis")
        text.stylize("red" if view.problems or seconds >= _STALLED_SECONDS else "")
        self.query_one("#status", Static).update(text)

    def _watch_reader(self) -> None:
        if self._reader.busy_seconds >= _STALLED_SECONDS:
            self._say_status()

    def _name_pages(self) -> None:
        text = Text(no_wrap=True)
        for number, page in enumerate(PAGES, 1):
            style = "reverse" if page == self._request.page else ""
            text.append(f" {number} {page.capitalize()} ", style=style)
        self.query_one("#pages", Static).update(text)

    # -- requests ----------------------------------------------------------------------------------

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """The cursor moved; in a table that was only filled no line was chosen."""
        table = event.data_table
        if not self.is_running or table.id not in ("experiments", "trials"):
            return  # an application that ends has no screen before the last messages
        number = _under_cursor(table)  # not the event's: the table may be filled anew since
        if table.id == "trials":
            if number and table is self.focused:
                self._ask(replace(self._request, trial=number))
        elif number and number != self._request.experiment:
            self._ask(replace(self._request, experiment=number, trial=None))

    def _ask(self, request: Request) -> None:
        if request != self._request:
            self._request = request
            self._reader.ask(request)

    def action_page(self, page: Page) -> None:
        """Show a page."""
        self._ask(replace(self._request, page=page))
        self.query_one("#below", ContentSwitcher).current = page
        self.query_one("#title", Static).update("reading ...")
        self._name_pages()

    def action_metric(self) -> None:
        """Show the curves of the next metric."""
        metrics = self._view.metrics
        if self._request.page != "curves":
            self.action_page("curves")
        elif self._view.metric in metrics:
            place = metrics.index(self._view.metric) + 1
            self._ask(replace(self._request, metric=metrics[place % len(metrics)]))

    def action_focus_other(self) -> None:
        """Move the cursor to the other half; where it comes to trials, it chooses a trial."""
        here, page = self.query_one("#experiments"), self._request.page
        if self.focused is not here or page == "curves":
            _focus(here)
            return
        _focus(self.query_one(f"#{page}"))
        if page == "trials" and (number := _under_cursor(self._table("trials"))):
            self._ask(replace(self._request, trial=number))

    def action_search(self) -> None:
        """Ask for words."""
        field = self.query_one("#search", Input)
        field.display = True
        _focus(field)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether a key acts: a / of a filter is a letter of it, and a question takes no filter."""
        return action != "search" or not (self.screen.is_modal or isinstance(self.focused, Input))

    def on_input_changed(self, event: Input.Changed) -> None:
        """A letter of the words was typed."""
        self._ask(replace(self._request, search=event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter was pressed."""
        event.input.display = False
        self.query_one("#experiments").focus()

    def on_key(self, event: object) -> None:
        """Escape takes the words away."""
        field = self.query_one("#search", Input)
        if getattr(event, "key", "") == "escape" and field.has_focus:
            field.value = ""
            field.display = False
            self.query_one("#experiments").focus()

    # -- changes -----------------------------------------------------------------------------------

    def action_change(self, what: str) -> None:
        """Ask, and then pause, activate, cancel or kill the experiment under the cursor."""
        # The last request may lag behind keys that came together.
        number = _under_cursor(self._table("experiments"))
        if number is None:
            self.notify("Move to an experiment first.", severity="warning")
            return
        name = f"experiment {number} ({self._view.experiments[str(number)][-1]})"
        question = f"{_QUESTIONS[what].format(what=name)}\n\ny: {what} it    n: leave it"

        def act(answer: bool | None) -> None:
            if answer:
                # No daemon: the user who quits has still asked for it.
                threading.Thread(target=self._change, args=(what, number)).start()

        self.push_screen(TextScreen(question), act)

    def _change(self, what: str, number: int) -> None:
        """In a thread of its own: a queue may take its time to answer."""
        warnings: list[str] = []
        try:
            experiment = self._acting(warnings.append).stored(number)
            done = getattr(experiment, what)()
        except (StoreError, SlurmError, LifecycleError, OSError) as error:
            self._report(str(error), "error")
            return
        over = f"Experiment {number} has already ended: {experiment.state}"
        self._report(over if done is False else f"{_DONE[what]} {number}", "information")
        for text in warnings:
            self._report(text, "warning")
        self._reader.ask(self._request)

    def _report(self, text: str, severity: SeverityLevel) -> None:
        if self.is_running:
            self.call_later(partial(self.notify, text, severity=severity, markup=False))
        else:
            print(f"detslurm: {text}", file=sys.stderr)

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)


def _table(name: str) -> DataTable[Text]:
    table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=False)
    for column in _COLUMNS[name]:
        table.add_column(column, key=column)
    return table


def _under_cursor(table: DataTable[Text]) -> int | None:
    """The id in the line of the cursor; None in an empty table."""
    if not table.row_count:
        return None
    return int(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value or 0)


def _focus(widget: Widget) -> None:
    """Give a widget the keys at once: `Widget.focus` does it after those that came together."""
    widget.screen.set_focus(widget)


def _fill(table: DataTable[Text], rows: Rows) -> None:
    """Bring a table up to date: only cells that changed, unless rows came or went."""
    keys = [key.value for key in table.rows]
    names = _COLUMNS[table.id or ""]
    if keys != list(rows):
        place = table.cursor_row
        at = keys[place] if 0 <= place < len(keys) else None
        table.clear()
        for key, row in rows.items():
            table.add_row(*map(_cell, row), key=key)
        if at in rows:
            table.move_cursor(row=list(rows).index(at), animate=False)
        _fit(table, rows)
        return
    for key, row in rows.items():
        for name, value in zip(names, row, strict=True):
            if table.get_cell(key, name).plain != value:
                table.update_cell(key, name, _cell(value))
    _fit(table, rows)


def _fit(table: DataTable[Text], rows: Rows) -> None:
    """Make columns as wide as what stands in them.

    The table does so itself when it is idle, but a line that was painted before then keeps the
    widths from before: on a busy machine, until something else changes.
    """
    for place, column in enumerate(table.ordered_columns):
        widths = [cell_len(row[place]) for row in rows.values()]
        column.content_width = max([column.label.cell_len, *widths])


def _cell(value: str) -> Text:
    return Text(value, no_wrap=True, style=_STATES.get(value, ""))


# Colours distinguish at a glance running, ended and failed, as in the tables of commands.
_STATES = {
    "ACTIVE": "cyan", "RUNNING": "cyan", "QUEUED": "yellow",
    "PAUSED": "magenta", "COMPLETED": "green", "CANCELED": "bright_black", "ERROR": "red",
    "UNKNOWN": "red",
}  # fmt: skip


def _color(series: int | None) -> str:
    return "" if series is None else COLORS[series % len(COLORS)]
