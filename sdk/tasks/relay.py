"""The end of a relay on a login node, for sites that refuse ssh to nodes.

A step of the job (`srun --overlap`) reaches the server there, and carries all connections.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from detslurm._base.multiplexer import Multiplexer
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.tasks.waiting import step_beside

if TYPE_CHECKING:
    from detslurm.store import Address

_END_SECONDS: Final = 3.0


def relay_command(address: Address) -> list[str]:
    """Return the command whose input and output carry connections to a server in a job."""
    target = address.socket or str(address.port)
    relay = [sys.executable, "-P", "-m", "detslurm.exec.tasks.relay", target]
    return [*step_beside(address), "--unbuffered", *relay]


async def relay(place: Path, command: Sequence[str]) -> None:
    """Listen on the Unix socket `place`, which is removed at the end, and relay connections by a
    `relay_command`. Raises `LifecycleError` when the command has ended, `OSError` if it can't
    listen."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    both = Multiplexer(process.stdout, process.stdin)
    try:
        server = await _listen(place, both)
        try:  # `async with` would wait for browsers to leave (Python 3.12)
            await both.run()
        finally:
            server.close()
        raise LifecycleError(f"the relay has ended: `{command[0]}` ended the step in the job")
    finally:
        place.unlink(missing_ok=True)
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command: by the end of its input, which ends the step in the job, else by force.

    `srun` has a helper, which keeps the pipes: they end once it is killed, too.
    """
    if process.stdin is not None:
        process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _END_SECONDS)


async def _listen(place: Path, both: Multiplexer) -> asyncio.Server:
    before = os.umask(0o177)  # private from its first moment
    try:
        return await asyncio.start_unix_server(both.accept, place)
    finally:
        os.umask(before)
