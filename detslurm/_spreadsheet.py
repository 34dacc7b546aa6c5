"""Write texts into tables that spreadsheets open."""

from __future__ import annotations

import re
from typing import Any

_FORMULA = re.compile(r"\s*[=+\-@]|[\t\r\n]")
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|Infinity)")


def spreadsheet_text(value: Any) -> Any:
    """Return a cell of a table that no spreadsheet takes for a formula.

    Args:
        value: The cell. A text that begins as a formula gets an apostrophe before it; numbers and
            all other values stay as they are.
    """
    if not isinstance(value, str) or not _FORMULA.match(value) or _NUMBER.fullmatch(value):
        return value
    return f"'{value}"
