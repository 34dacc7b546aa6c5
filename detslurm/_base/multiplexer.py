"""Carry many connections over one pair of pipes, as the input and output of `srun` are.

A frame is the number of its connection, the size of its data, and the data. A frame without data
ends its connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

_HEADER: Final = struct.Struct("!II")
_CHUNK: Final = 1 << 16
# A reader that takes nothing for so long loses its connection, because all others wait for it.
_PATIENCE: Final = 30.0


class Multiplexer:
    """One end of the pipes.

    Args:
        reader: The frames that come.
        writer: The frames that go.
        dial: Opens a connection for each new number that comes; None at the end that takes
            connections from clients.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dial: Dial | None = None
    ) -> None:
        self._reader, self._writer, self._dial = reader, writer, dial
        self._open: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._newest = 0

    async def run(self) -> None:
        """Pass on frames to their connections until the pipe ends, then close all connections."""
        try:
            with suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    number, size = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                    await self._deliver(number, await self._reader.readexactly(size))
        finally:
            for number in [*self._open]:
                self._close(number)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a client's connection until it ends, as a callback of asyncio's servers."""
        self._newest += 1
        await self._carry(self._newest, reader, writer)

    async def _deliver(self, number: int, data: bytes) -> None:
        if data and number > self._newest and self._dial is not None:
            self._newest = number
            await self._connect(number, self._dial)
        if (writer := self._open.get(number)) is None:
            return  # it was closed at this end meanwhile
        if not data:
            self._close(number)
            return
        writer.write(data)
        try:
            await asyncio.wait_for(writer.drain(), _PATIENCE)
        except (OSError, TimeoutError):
            self._close(number)

    async def _connect(self, number: int, dial: Dial) -> None:
        try:
            reader, writer = await dial()
        except OSError:
            await self._send(number, b"")
            return
        self._open[number] = writer
        task = asyncio.create_task(self._carry(number, reader, writer))
        self._tasks.add(task)  # asyncio itself holds no reference
        task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._open[number] = writer
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._send(number, data)
        with suppress(OSError):
            await self._send(number, b"")
        self._close(number)

    async def _send(self, number: int, data: bytes) -> None:
        self._writer.write(_HEADER.pack(number, len(data)) + data)
        await self._writer.drain()

    def _close(self, number: int) -> None:
        if (writer := self._open.pop(number, None)) is not None:
            writer.close()
