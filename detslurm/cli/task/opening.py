"""How a browser on a laptop reaches the server in a job: the lines that are printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import click

from detslurm.cli.output.printing import note
from detslurm.cli.output.waiting import waiting
from detslurm.cli.tunnel import ended_by_signals, tunnel_here, tunnel_to

if TYPE_CHECKING:
    from detslurm.sdk.tasks.notebook import Address
    from detslurm.sdk.tasks.task import Task


class Way(NamedTuple):
    """A way from a laptop to a server.

    Attributes:
        tunnel: The command for the laptop.
        url: The address for its browser.
    """

    tunnel: str
    url: str


def way_to(address: Address, laptop_port: int, path: str) -> Way:
    """Return the way to a server in a job.

    Args:
        address: Where it listens.
        laptop_port: The port of the laptop's end of the tunnel.
        path: The path of its first page, with a proof if it needs one.
    """
    target = address.socket or f"127.0.0.1:{address.port}"
    tunnel = tunnel_to(address.host, f"{laptop_port}:{target}")
    return Way(tunnel, f"http://localhost:{laptop_port}{path}")


def print_way(way: Way) -> None:
    """Print the two lines for the laptop."""
    click.echo(f"On your laptop:  {way.tunnel}")
    click.echo(f"then open:       {way.url}")


def address_of(task: Task) -> Address:
    """Wait for the address of a task's server, and show its state meanwhile."""
    from detslurm.sdk.tasks.notebook import wait_for_address

    with waiting() as show:
        return wait_for_address(task, lambda text: show(text, text, 0.0))


def relay(address: Address, kind: str, laptop_port: int, path: str) -> None:
    """Listen on a socket of this machine until Ctrl-C, and relay to a server in a job.

    Args:
        address: Where the server listens.
        kind: The kind of its task.
        laptop_port: The port of the laptop's end of the tunnel.
        path: The path of its first page, with a proof if it needs one.
    """
    import asyncio

    from detslurm.look.private_files import private_directory
    from detslurm.sdk.tasks import relay as relaying

    place = private_directory(os.environ) / f"{kind}-{os.getpid()}.sock"
    tunnel = tunnel_here(laptop_port, str(place))
    print_way(Way(tunnel, f"http://localhost:{laptop_port}{path}"))
    note(f"Until Ctrl-C, or the end of this terminal or of the {kind}.")
    with ended_by_signals():
        asyncio.run(relaying.relay(place, relaying.relay_command(address)))
