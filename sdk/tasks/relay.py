"""The end of a relay on a login node, for sites that refuse ssh to nodes.

A step of the job (`srun --overlap`) reaches the server there, and carries all connections.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm._base.addresses import LOOPBACK
from detslurm._base.multiplexer import Multiplexer
from detslurm.sdk.errors import LifecycleError

if TYPE_CHECKING:
    from detslurm.store.address import Address


def relay_command(address: Address) -> list[str]:
    """Return the command whose input and output carry connections to a server in a job."""
    step = ["srun", f"--jobid={address.job}", f"--nodelist={address.host}", "--overlap", "--quiet"]
    step += ["--nodes=1", "--ntasks=1", "--cpu-bind=none", "--unbuffered"]
    target = address.socket or str(address.port)
    return [*step, sys.executable, "-P", "-m", "detslurm.exec.tasks.relay", target]


async def relay(place: Path | int, command: Sequence[str]) -> None:
    """Listen on this machine, and relay connections until the command ends.

    Args:
        place: Where to listen: a Unix socket, removed at the end, or a port of the loopback
            address.
        command: See `relay_command`.

    Raises:
        LifecycleError: If the command has ended.
        OSError: If it can't listen.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    both = Multiplexer(process.stdout, process.stdin)
    try:
        server = await _listen(place, both)
        async with server:
            await both.run()
        raise LifecycleError(f"the relay has ended: `{command[0]}` ended the step in the job")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if isinstance(place, Path):
            place.unlink(missing_ok=True)


async def _listen(place: Path | int, both: Multiplexer) -> asyncio.Server:
    if isinstance(place, int):
        return await asyncio.start_server(both.accept, LOOPBACK, place)
    before = os.umask(0o177)  # private from its first moment
    try:
        return await asyncio.start_unix_server(both.accept, place)
    finally:
        os.umask(before)
