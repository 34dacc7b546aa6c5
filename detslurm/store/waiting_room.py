"""Where events wait that lost the race for a number: a directory whose listing has them all.

A request is an empty file whose name holds the events: so one listing has what many readings of
files would have. The listing is a help for the next process that commits, and never a proof.
"""

from __future__ import annotations

import os
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from detslurm.store import fs
from detslurm.store.errors import StoreError
from detslurm.store.frame import decode_json, encode_json

_LONGEST_NAME: Final = 255
# The dictionary that compresses names; a change makes waiting entries unreadable: no harm.
_WORDS: Final = (
    b'[{"e":"operations","e":"sampled","e":"run_ended","trial":1,"worker":"1_","outcome":"error"'
    b'"lost""out_of_ops""completed""stopped","checkpoint":"","fencing_token":1},'
    b'{"e":"work_requested","worker":"1_","incarnation":"'
    b'[{"e":"validated","trial":1,"length":,"time":1,"metric":0.,"fencing_token":1}]'
)


class CommitRequest(NamedTuple):
    """Events that are to become part of the log."""

    position: int  # how far its process had read the log before it asked
    mark: str  # which no other request has
    events: list[dict[str, Any]]
    body: str = ""  # the events as they stand in a name, where they came in one

    @classmethod
    def new(cls, position: int, events: list[dict[str, Any]]) -> Self:
        """With a mark of its own."""
        return cls(position, os.urandom(8).hex(), events)

    def name(self) -> str | None:
        """As the name of a file; None where that is too long."""
        squeezer = zlib.compressobj(9, wbits=-15, zdict=_WORDS)
        body = squeezer.compress(encode_json(self.events)) + squeezer.flush()
        name = f"{self.position:08d}.{self.mark}.{urlsafe_b64encode(body).decode()}"
        return name if len(name) <= _LONGEST_NAME else None

    @classmethod
    def of_name(cls, name: str) -> Self | None:
        """The entry that `name` wrote, before its events are read; None for anything else."""
        position, _, rest = name.partition(".")
        mark, _, body = rest.partition(".")
        return cls(int(position), mark, [], body) if position.isdigit() and body else None

    def read(self) -> Self | None:
        """With the events; None where they can't be read."""
        try:
            squeezed = urlsafe_b64decode(self.body)
            events = decode_json(zlib.decompressobj(-15, zdict=_WORDS).decompress(squeezed))
        except (ValueError, zlib.error, msgspec.DecodeError):
            return None
        fits = isinstance(events, list) and all(isinstance(event, dict) for event in events)
        return self._replace(events=events) if fits else None


class Visit(NamedTuple):
    """A request in the room, under this name if it could be shown, and the seconds of one call."""

    name: str | None
    call: float


class WaitingRoom:
    """The requests below `path`, which the first of them makes."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    @contextmanager
    def entered(self, request: CommitRequest, *, shown: bool = True) -> Iterator[Visit]:
        """Show a request to others while the block runs, where that may and can be done."""
        name, began = request.name() if shown else None, time.monotonic()
        if name is None or not self._shown(f"{self._path}/{name}"):
            yield Visit(None, 0.0)
            return
        try:
            yield Visit(name, time.monotonic() - began)
        finally:
            fs.discard(f"{self._path}/{name}")

    def _shown(self, path: str) -> bool:
        # Some file systems have shorter names; some users have no inode left.
        with suppress(StoreError):
            if not fs.touch_new(path):
                fs.claim_directory(self._path)
                return fs.touch_new(path)
            return True
        return False

    def others(self, visit: Visit) -> list[str]:
        """The names of the other entries: the requests that came first are the first."""
        return sorted(name for name in fs.names_in(self._path) if name != visit.name)

    def clear(self, before: int) -> None:
        """Remove what processes left that ended long ago: requests from before a position."""
        for name in fs.names_in(self._path):
            request = CommitRequest.of_name(name)
            if request is not None and request.position < before:
                fs.discard(f"{self._path}/{name}")
