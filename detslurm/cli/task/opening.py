"""How a browser on a laptop reaches the server in a job: the lines that are printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from detslurm.cli.output.printing import note, print_json
from detslurm.cli.output.waiting import BottomLine
from detslurm.cli.tunnel import ended_by_signals, tunnel_here, tunnel_to
from detslurm.sdk.tasks import relay as relaying
from detslurm.sdk.tasks import waiting
from detslurm.sdk.tasks.waiting import address_of

if TYPE_CHECKING:
    from detslurm.sdk.tasks.task import Task
    from detslurm.sdk.tasks.waiting import Address

LAPTOP_PORTS: Final = {"notebook": 8888, "tensorboard": 6006}
"""The port of the laptop's end of the tunnel, by the kind of the task."""

relay_option = click.option(
    "--relay",
    "is_relay",
    is_flag=True,
    help="Listen on this machine until Ctrl-C, for sites that refuse ssh to nodes.",
)


class Way(NamedTuple):
    """A way from a laptop to a server: the command there, and the address for its browser."""

    tunnel: str
    url: str


def report_started(task: Task, *, detach: bool, as_json: bool) -> None:
    """Print how to reach a new server once it listens, or with `detach` its id at once."""
    if not detach:
        note_started(task)
        open_server(task, is_relay=False, as_json=as_json)
    elif as_json:
        print_json(task.to_dict())
    else:
        click.echo(task.id)


def open_server(task: Task, *, is_relay: bool, as_json: bool) -> None:
    """Wait until a task's server listens, and print how to reach it, or relay to it."""
    wait_for_server(task)
    address = address_of(task)
    if is_relay:
        _relay(address, task.kind)
        return
    target = address.socket or f"127.0.0.1:{address.port}"
    tunnel = tunnel_to(address.host, f"{LAPTOP_PORTS[task.kind]}:{target}")
    way = Way(tunnel, f"http://localhost:{LAPTOP_PORTS[task.kind]}{_first_page(address)}")
    if as_json:
        print_json({**task.to_dict(), **way._asdict()})
        return
    _print_way(way)
    if address.path is not None:
        click.echo(f"In Open OnDemand: the portal's address, then {_first_page(address)}")
    note(f"{_name(task)} runs on {address.host}. `detslurm {task.kind} kill {task.id}` ends it.")


def note_started(task: Task) -> None:
    """Show a new task's job on stderr."""
    note(f"Started {task.kind} {task.id}: job {task.job_id}")


def wait_for_server(task: Task) -> None:
    """Wait until a task's server listens or has ended, and show its state meanwhile."""
    shown = [""]
    line = BottomLine(lambda: shown[0])

    def report(text: str) -> None:
        shown[0] = text
        line.show()

    try:
        waiting.wait_for_server(task, report)
    except KeyboardInterrupt:
        line.clear()
        command = f"detslurm {task.kind}"
        note(
            f"{_name(task)} goes on. `{command} open {task.id}` waits for it again,"
            f" `{command} kill {task.id}` ends it."
        )
        raise
    finally:
        line.clear()


def _name(task: Task) -> str:
    return f"{task.kind.capitalize()} {task.id}"


def _first_page(address: Address) -> str:
    """Return the path of the first page, with the token if the server needs it."""
    proof = f"?token={address.token}" if address.token else ""
    return f"{address.path or '/'}{proof}"


def _print_way(way: Way) -> None:
    click.echo(f"On your laptop:  {way.tunnel}")
    click.echo(f"then open:       {way.url}")


def _relay(address: Address, kind: str) -> None:
    """Listen on a socket of this machine until Ctrl-C, and relay to a server in a job."""
    import asyncio

    from detslurm.look.private_files import private_directory

    place = private_directory(os.environ) / f"relay-{os.getpid()}.sock"
    port = LAPTOP_PORTS[kind]
    url = f"http://localhost:{port}{_first_page(address)}"
    _print_way(Way(tunnel_here(port, str(place)), url))
    note(f"Until Ctrl-C, or the end of this terminal or of the {kind}.")
    with ended_by_signals():
        asyncio.run(relaying.relay(place, relaying.relay_command(address)))
