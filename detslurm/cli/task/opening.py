"""How a browser on a laptop reaches the server in a job: the lines that are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from detslurm.cli.output.waiting import waiting
from detslurm.cli.tunnel import tunnel_to

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
