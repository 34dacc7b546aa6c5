"""`detslurm ui`."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

import click

from detslurm._base.quantities import counted
from detslurm.cli.arguments.ids import client
from detslurm.cli.output.printing import Document, describes, note
from detslurm.cli.tunnel import ended_by_signals, tunnel_here
from detslurm.look.access import TOKEN_FIELD, for_own_host, for_token
from detslurm.look.app import application
from detslurm.look.ondemand import default_directory, doubts, failure, install
from detslurm.look.private_files import new_token, private_directory, socket_name
from detslurm.look.serving import LookServer, LoopbackServer, UnixServer
from detslurm.sdk.client import Client
from detslurm.sdk.store_root import DEFAULT_ORIGIN, root_origin

_LAPTOP_PORT = 8080


@click.group(invoke_without_command=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on this port of the loopback address, with a secret; 0 is one that is free.",
)
@click.option(
    "--idle-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Stay for at most this long without a request.",
)
@click.pass_context
def ui(context: click.Context, port: int | None, idle_minutes: float) -> None:
    """Show experiments in a browser, live, until Ctrl-C.

    Notes, labels and whether lists show an experiment can be set there, and nothing else.
    It listens on a Unix socket that only you can open. How to reach it from your laptop is printed
    first. It ends with the terminal, too, and after half an hour without a reader.

    \b
    Examples:
      detslurm ui
      detslurm ui --port 8080
      detslurm ui install-ondemand
    """
    if context.invoked_subcommand is not None:
        return
    with ended_by_signals(), _server(port) as server:
        minutes = counted(idle_minutes, "minute")
        note(f"Until Ctrl-C, the end of this terminal, or {minutes} without a request.")
        server.serve_until_idle(60 * idle_minutes)
        note(f"No page was read for {minutes}: ended.")


def _server(port: int | None) -> LookServer:
    """The server, which listens already; how to reach it is printed."""
    pages = application(Client, token=secrets.token_urlsafe())
    return _on_socket(pages) if port is None else _on_port(pages, port)


def _on_socket(application: Any) -> LookServer:
    path = private_directory(os.environ) / socket_name(client().store.path)
    server = UnixServer(path, for_own_host(application))
    click.echo(f"On your laptop:  {tunnel_here(_LAPTOP_PORT, str(path))}")
    click.echo(f"then open:       http://localhost:{_LAPTOP_PORT}/")
    return server


def _on_port(application: Any, port: int) -> LookServer:
    token = new_token(private_directory(os.environ) / "ui-token")
    server = LoopbackServer(port, for_own_host(for_token(application, token)))
    secret = f"/?{TOKEN_FIELD}={token}"
    way = tunnel_here(_LAPTOP_PORT, f"127.0.0.1:{server.port}")
    click.echo(f"On your laptop:  {way}")
    click.echo(f"then open:       http://localhost:{_LAPTOP_PORT}{secret}")
    click.echo(f"On this machine: http://localhost:{server.port}{secret}")
    return server


@ui.command("install-ondemand", short_help="Write the app for the web portal Open OnDemand.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the app to this directory. By default to ~/ondemand/dev/detslurm.",
)
@describes
def install_ondemand(directory: Path | None) -> Document:
    """Write the app that shows your experiments in the web portal Open OnDemand.

    It is your own there, under Develop, My Sandbox Apps; a site gives it to everybody with --dir
    /var/www/ood/apps/sys/detslurm. Run it again after an update or for another store: files that
    are right already stay as they are.

    \b
    Examples:
      detslurm ui install-ondemand
      detslurm ui install-ondemand --dir /var/www/ood/apps/sys/detslurm
    """
    place = (directory or default_directory()).absolute()
    for_all = not place.resolve().is_relative_to(Path.home().resolve())  # a home may be a link
    # The default store is a directory at home, of which each user has another.
    store = None if for_all and root_origin() == DEFAULT_ORIGIN else client().store.path
    changed = install(place, store, os.environ)
    for text in filter(None, (failure(place), *doubts(place, store, for_all=for_all))):
        note(f"warning: {text}")
    what = "wrote" if changed else "nothing to change in"
    shown = store or "each user's own store, ~/detslurm"
    known = None if store is None else str(store)
    return Document(
        lambda: f"{what} {place}, which shows {shown}",
        lambda: {"path": str(place), "store": known, "changed": changed},
    )
