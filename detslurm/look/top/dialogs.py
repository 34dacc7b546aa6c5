"""Screens that stand over a view: a text or a question, closed by a key."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

BOX: str = """
.box { width: 76; height: auto; border: round $primary; padding: 0 1; background: $surface; }
"""
"""The style of the box around them."""


class TextScreen(ModalScreen[bool]):
    """A text over the view, closed by y, n, Enter or Escape; True for y."""

    CSS = "TextScreen { align: center middle; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "dismiss(True)", "Yes"),
        ("n,escape,enter,q", "dismiss(False)", "Close"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The text in a box."""
        with Vertical(classes="box"):
            yield Static(Text(self._text))
