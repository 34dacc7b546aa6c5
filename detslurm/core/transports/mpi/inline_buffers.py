"""A small buffer of every MPI process, exchanged among all: the beginning of every call over MPI.

It states which call its rank is in and how large the rank's object is, and carries a small object
inline. One persistent request serves all calls: MPI sets the exchange up once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

_HEAD: Final = "QQQ"  # the call, the number of parts, the bytes of all parts
_HEAD_SIZE: Final = struct.calcsize(_HEAD)
_MORE: Final = 1 << 63  # in the call: the object follows, it did not fit

# A small object fits; and at the largest sizes all buffers together stay small too.
_WIDEST: Final = 512
_NARROWEST: Final = 128
_TOGETHER: Final = 1 << 16

_FEW: Final = 4
_TAG: Final = 72


class InlineBuffers:
    """This rank's buffer and those of all others, by index in the communicator."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self.size: int = comm.Get_size()
        index = comm.Get_rank()
        width = max(_NARROWEST, min(_WIDEST, _TOGETHER // self.size))
        self.inline = width - _HEAD_SIZE
        """How many bytes travel in a buffer."""
        everything = memoryview(bytearray(width * self.size))
        buffers = [everything[width * i : width * (i + 1)] for i in range(self.size)]
        self.bodies = [buffer[_HEAD_SIZE:] for buffer in buffers]
        self.others = [body for i, body in enumerate(self.bodies) if i != index]
        self._own, self._all = buffers[index], everything
        self._fill = struct.Struct(f"<{_HEAD}{self.inline}s").pack_into
        self._calls = struct.Struct("<" + f"Q{width - 8}x" * self.size).unpack
        self._heads = struct.Struct("<" + f"{_HEAD}{self.inline}x" * self.size).unpack
        # Persistent: the request refers to this memory for its whole life, which must never move.
        self.request = _request(mpi, comm, everything, buffers)

    def send(self, call: int, count: int, size: int, body: bytes) -> bool:
        """Send this rank's call and object; whether all others' have arrived already."""
        if size <= self.inline:
            self._fill(self._own, 0, call, count, size, body)
        else:
            self._fill(self._own, 0, call | _MORE, count, size, b"")
        # Start overwrites the others' parts: whatever of the last call is still needed was copied
        # or unpickled by then, for no rank begins a call before it has finished the one before.
        self.request.Start()
        done: bool = self.request.Test()
        return done

    def all_in(self, call: int) -> bool:
        """Whether everybody is in this call, with an object that fits its buffer."""
        calls: tuple[int, ...] = self._calls(self._all)
        return calls.count(call) == self.size

    def calls(self) -> list[int]:
        """The call of each rank."""
        return [call & ~_MORE for call in self._calls(self._all)]

    def sizes(self) -> list[tuple[int, int]]:
        """The parts of each rank, and their bytes."""
        heads = self._heads(self._all)
        return list(zip(heads[1::3], heads[2::3], strict=True))


def _request(mpi: Any, comm: Any, everything: memoryview, buffers: Sequence[memoryview]) -> Any:
    """The request that exchanges the buffers each time that it is started."""
    receive = [everything, len(buffers[0]), mpi.BYTE]
    try:
        return comm.Allgather_init(mpi.IN_PLACE, receive)
    except NotImplementedError:  # Open MPI 4 and whatever else is older than MPI 4
        few = len(buffers) <= _FEW
        return _PointToPoint(mpi, comm, buffers) if few else _PerCall(mpi, comm, receive)


class _PointToPoint:
    """Point to point, each to each; the fastest way among a few."""

    def __init__(self, mpi: Any, comm: Any, buffers: Sequence[memoryview]) -> None:
        own, byte = comm.Get_rank(), mpi.BYTE
        peers = [i for i in range(len(buffers)) if i != own]
        self._requests = [comm.Recv_init([buffers[i], byte], i, _TAG) for i in peers]
        self._requests += [comm.Send_init([buffers[own], byte], i, _TAG) for i in peers]
        self._start, self._test = mpi.Prequest.Startall, mpi.Prequest.Testall

    def Start(self) -> None:
        self._start(self._requests)

    def Test(self) -> Any:
        return self._test(self._requests)


class _PerCall:
    """A new request for every call."""

    def __init__(self, mpi: Any, comm: Any, buffer: list[Any]) -> None:
        self._begin, self._args = comm.Iallgather, (mpi.IN_PLACE, buffer)
        self._request: Any = None

    def Start(self) -> None:
        self._request = self._begin(*self._args)

    def Test(self) -> Any:
        return self._request.Test()
