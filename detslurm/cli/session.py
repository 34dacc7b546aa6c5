"""The memory of one run of the command line until its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from detslurm.sdk.client import Client


class Session:
    """Whether the user wants JSON, what went wrong so far, and whether an answer was printed.

    Attributes:
        as_json: Whether errors are printed as JSON, too.
        bare: Whether JSON is printed without the envelope, as `det` does.
        errors: The errors so far, as the envelope has them.
        answered: Whether the envelope was printed.
        client: The client that the command has used; None if it has used no store.
    """

    def __init__(self, argv: Sequence[str] = (), *, bare: bool = False) -> None:
        words = list(argv)
        self.as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
        self.bare = bare
        self.errors: list[dict[str, Any]] = []
        self.answered = False
        self.client: Client | None = None


def session() -> Session:
    """The session of the command that runs now; outside of any command a new session."""
    context = click.get_current_context(silent=True)
    found = context.find_root().obj if context is not None else None
    return found if isinstance(found, Session) else Session()
