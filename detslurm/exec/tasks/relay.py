"""The end of a relay in a job: connects what comes through a step's input to a server of the node.

srun --overlap --jobid=7 python3 -P -m detslurm.exec.tasks.relay /tmp/detslurm-17-x/jupyter
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from detslurm._base.addresses import LOOPBACK
from detslurm._base.multiplexer import Multiplexer


async def relay(target: str) -> None:
    """Relay connections to a Unix socket or a port of the loopback address; ends with its input."""

    async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if target.isdigit():
            return await asyncio.open_connection(LOOPBACK, int(target))
        return await asyncio.open_unix_connection(target)

    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, sys.stdout.buffer
    )
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    await Multiplexer(reader, writer, dial).run()


def main(argv: Sequence[str]) -> None:
    """Relay connections to the server that the only argument names."""
    asyncio.run(relay(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
