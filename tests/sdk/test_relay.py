"""Many connections through one command: here a process beside this one stands for a job's step."""

from __future__ import annotations

import asyncio
import stat
import sys
from pathlib import Path

import pytest

from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.tasks import relay as relay_module
from detslurm.sdk.tasks.relay import relay
from tests.cluster.waiting import wait_for


async def _shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each line in upper case; hang up after the line "bye"."""
    while (line := await reader.readline()).strip() not in (b"", b"bye"):
        writer.write(line.upper())
    writer.close()


async def _story(server: Path, place: Path) -> None:
    command = [sys.executable, "-P", "-m", "detslurm.exec.tasks.relay", str(server)]
    async with await asyncio.start_unix_server(_shout, server, limit=1 << 20):
        relaying = asyncio.create_task(relay(place, command))
        while not place.exists():
            await asyncio.sleep(0.01)
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        several = [await asyncio.open_unix_connection(place) for _ in range(3)]
        for number, (_, writer) in enumerate(several):
            writer.write(b"%d" % number + b"x" * 300_000 + b"\n")
        for number, (reader, _) in enumerate(several):
            assert await reader.readexactly(300_002) == b"%d" % number + b"X" * 300_000 + b"\n"
        several[0][1].write(b"bye\n")
        assert await several[0][0].read() == b""
        several[1][1].write(b"on\n")
        assert await several[1][0].readline() == b"ON\n"
        several[1][1].close()
    for _, client in several:
        client.close()
    # The server is gone: a new connection is refused, and the relay goes on until the step ends.
    reader, writer = await asyncio.open_unix_connection(place)
    writer.write(b"x\n")
    assert await reader.read() == b""
    writer.close()
    relaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await relaying
    assert not place.exists()
    with pytest.raises(LifecycleError, match="the relay has ended"):
        await relay(place, ["true"])
    assert not place.exists()


def test_connections_go_through_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several at once, larger than any buffer; the end of one is the end of that one alone."""
    monkeypatch.chdir(tmp_path)  # paths of sockets are short
    asyncio.run(_story(Path("server"), Path("place")))


async def _end_with_helper(place: Path, pid: Path) -> None:
    command = ["sh", "-c", f"sleep 600 & echo $! > {pid}; exec sleep 600"]
    relaying = asyncio.create_task(relay(place, command))
    while not (place.exists() and pid.exists() and pid.read_text()):
        await asyncio.sleep(0.01)
    relaying.cancel()
    await asyncio.wait([relaying], timeout=60)
    assert relaying.cancelled()


def test_a_command_whose_helper_keeps_the_pipes_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the helper of srun does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(relay_module, "_END_SECONDS", 0.1)
    asyncio.run(_end_with_helper(Path("place"), Path("pid")))
    helper = int(Path("pid").read_text())
    wait_for(lambda: _has_ended(helper))


def _has_ended(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
