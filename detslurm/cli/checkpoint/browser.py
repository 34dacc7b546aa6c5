"""The browser of checkpoints; needs textual, so other modules import it where they use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static, Tree
from textual.widgets.tree import TreeNode
from textual.worker import get_current_worker

from detslurm.cli.checkpoint import browsing
from detslurm.cli.checkpoint.browsing import Node
from detslurm.cli.failures import described
from detslurm.cli.output.printing import size
from detslurm.look.top.cells import one_line
from detslurm.look.top.dialogs import BOX, TextScreen
from detslurm.sdk.checkpoints.checkpoint import Checkpoint
from detslurm.sdk.client import Client


class PathScreen(ModalScreen[str | None]):
    """Asks for a directory; None where the user changes their mind."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Cancel")]

    def __init__(self, question: str, default: str) -> None:
        super().__init__()
        self._question, self._default = question, default

    def compose(self) -> ComposeResult:
        """The question and the field."""
        with Vertical(classes="box"):
            yield Static(Text(self._question))
            yield Input(self._default)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter was pressed."""
        self.dismiss(event.value.strip() or None)


class CheckpointBrowser(App[None]):
    """Experiments > trials > checkpoints > files, each read when it is opened.

    Attributes:
        shown: The restore commands that the user has looked at.
    """

    TITLE = "detslurm checkpoints"
    ENABLE_COMMAND_PALETTE = False
    CSS = f"""
    Tree {{ width: 1fr; }}
    #beside {{ width: 36; border-left: solid $primary; padding: 0 1; }}
    #copying {{ height: 1; display: none; }}
    PathScreen {{ align: center middle; }}
    {BOX}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("r", "restore", "Restore"),
        ("d", "download", "Download"),
        ("x,delete", "delete", "Delete"),
        ("u", "reread", "Read again"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client
        self._one_reader = Lock()
        self.shown: list[str] = []

    def compose(self) -> ComposeResult:
        """The tree, the details of its line, and the keys."""
        with Horizontal():
            tree: Tree[Node | None] = Tree("experiments", data=None)
            tree.guide_depth = 2
            yield tree
            with VerticalScroll(id="beside", can_focus=False):
                yield Static("", id="details")
        yield Static("", id="copying")
        yield Footer()

    def on_mount(self) -> None:
        """Read the experiments."""
        self._tree.root.expand()
        self._tree.focus()

    @property
    def _tree(self) -> Tree[Node | None]:
        return self.query_one(Tree)

    # -- reading -----------------------------------------------------------------------------------

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Node | None]) -> None:
        """Read the children of a line, once."""
        if not event.node.children:
            self._read(event.node)

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Node | None]) -> None:
        """Show the details of a line."""
        node = event.node.data
        self.query_one("#details", Static).update(_table(node.details() if node else []))

    def _read(self, node: TreeNode[Node | None]) -> None:
        read = node.data.children if node.data else partial(browsing.experiments, self._client)

        def children() -> Sequence[Node]:
            with self._one_reader:
                return read() if read else ()

        node.remove_children()
        node.add_leaf(Text("reading ...", style="dim"), data=None)
        self._in_background(children, partial(self._fill, node), node.remove_children)

    def _fill(self, node: TreeNode[Node | None], children: Sequence[Node]) -> None:
        node.remove_children()
        for child in children:
            opens = child.children is not None
            node.add(Text(child.label, no_wrap=True), data=child, allow_expand=opens)
        if not children:
            node.add_leaf(Text("nothing here", style="dim"), data=None)

    def _in_background(
        self,
        act: Callable[[], Any],
        then: Callable[[Any], Any],
        failed: Callable[[], Any] = lambda: None,
    ) -> None:
        """Do what may wait for a file server; expected errors are shown."""

        def work() -> None:
            try:
                result = act()
            except _UserHasLeft:
                return
            except Exception as error:
                known = described(error)
                if known is None:
                    raise
                self.call_from_thread(failed)
                self.call_from_thread(self.notify, known.text, severity="error", markup=False)
            else:
                self.call_from_thread(then, result)

        self.run_worker(work, thread=True)

    # -- keys --------------------------------------------------------------------------------------

    def _chosen(self) -> tuple[TreeNode[Node | None], Checkpoint] | None:
        """The checkpoint under the cursor, or that of the file under it."""
        place = self._tree.cursor_node
        while place is not None:
            if place.data is not None and place.data.checkpoint is not None:
                return place, place.data.checkpoint
            place = place.parent
        self.notify("Move to a checkpoint first.", severity="warning")
        return None

    def action_restore(self) -> None:
        """Show how to have a checkpoint again; it is printed again when the browser ends."""
        if chosen := self._chosen():
            text = browsing.restoring(chosen[1])
            if text not in self.shown:
                self.shown.append(text)
            self.push_screen(TextScreen(text))

    def action_download(self) -> None:
        """Ask where to, and copy a checkpoint."""
        if chosen := self._chosen():
            one = chosen[1]

            def copy(path: str | None) -> None:
                if path is None:
                    return
                self.notify(f"Copying {one.uuid[:8]} ...")
                target = Path(path).expanduser()
                self._in_background(
                    partial(one.download, target, progress=self._copying(one.uuid)),
                    self._copied,
                    lambda: self._say_copying(""),
                )

            question = f"Copy checkpoint {one.uuid[:8]} ({size(one.size)}) to:"
            self.push_screen(PathScreen(question, f"checkpoints/{one.uuid}"), copy)

    def _copying(self, uuid: str) -> Callable[[int, int], None]:
        """Shows the progress of a copy, at each percent, and breaks it off when the user leaves."""
        said = -1

        def progress(done: int, whole: int) -> None:
            nonlocal said
            _stop_when_left()
            percent = 100 * done // max(whole, 1)
            if percent != said:
                said = percent
                text = f"Copying {uuid[:8]}: {percent}% of {size(whole)}"
                self.call_from_thread(self._say_copying, text)

        return progress

    def _say_copying(self, text: str) -> None:
        line = self.query_one("#copying", Static)
        line.update(text)
        line.display = bool(text)

    def _copied(self, target: Path) -> None:
        self._say_copying("")
        self.notify(f"Copied to {target}", markup=False)

    def action_delete(self) -> None:
        """Ask, and delete a checkpoint."""
        if chosen := self._chosen():
            place, one = chosen

            def delete(answer: bool | None) -> None:
                if answer:
                    self._in_background(one.delete, lambda _: self._removed(place, one.uuid))

            self.push_screen(
                TextScreen(
                    f"Delete checkpoint {one.uuid} ({size(one.size)}) permanently?\n\n"
                    "y deletes it, n keeps it"
                ),
                delete,
            )

    def _removed(self, place: TreeNode[Node | None], uuid: str) -> None:
        place.remove()
        self.notify(f"Deleted {uuid[:8]}")

    def action_reread(self) -> None:
        """Read the children of the line again, or those of its parent."""
        place = self._tree.cursor_node or self._tree.root
        while place.parent is not None and not place.is_expanded:
            place = place.parent
        self._read(place)


class _UserHasLeft(Exception):
    pass


def _stop_when_left() -> None:
    # A download that was broken off is continued by the next download.
    if get_current_worker().is_cancelled:
        raise _UserHasLeft


def _table(details: browsing.Details) -> Text:
    text = Text()
    for name, value in details:
        if shown := one_line(value):
            text.append(f"{one_line(name)} ", style="dim")
            text.append(f"{shown}\n")
    return text
