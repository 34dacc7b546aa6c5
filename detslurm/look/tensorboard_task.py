"""A TensorBoard's job: serves experiments on a Unix socket of its node until it is idle.

    python3 -P -m detslurm.look.tensorboard_task --idle-timeout 1800 --experiments 7 8

The files of experiments are those of the store that the job belongs to.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from detslurm._base import contract
from detslurm._base.node_files import make_socket_directory
from detslurm.look.serving import UnixServer
from detslurm.sdk import Client
from detslurm.sdk.errors import LifecycleError
from detslurm.sdk.tensorboard import application, event_files, specification, with_snapshots
from detslurm.store import publish_address


def main(argv: Sequence[str]) -> int:
    """Serve experiments until no page was requested for a while; the exit status."""
    if os.environ.get("NODE_RANK", "0") != "0":
        return 0  # one node serves the pages
    options = _options(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))  # the job has to end
    client = Client(Path(os.environ[contract.EXPERIMENT_DIR]).parent.parent)
    found = event_files(
        map(client.stored, options.experiments), map(client.stored_trial, options.trials)
    )
    try:
        with with_snapshots(found) as complete:
            server = UnixServer(
                make_socket_directory() / "tensorboard", application(specification(complete))
            )
            publish_address(socket=str(server.path))
            _serve(server, options.idle_timeout)
    except LifecycleError as error:
        print(f"detslurm: {error}", flush=True)
        return 1
    return 0


def _serve(server: UnixServer, idle_timeout: float) -> None:
    print(f"detslurm: TensorBoard listens on {socket.gethostname()}", flush=True)
    try:
        server.serve_until_idle(idle_timeout or math.inf)
        print(f"detslurm: TensorBoard ends: no request for {idle_timeout:g} seconds", flush=True)
    finally:
        server.server_close()


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tensorboard_task", description=__doc__)
    parser.add_argument("--idle-timeout", type=float, default=0.0, help="in seconds; 0 is never")
    parser.add_argument("--experiments", type=int, nargs="*", default=[], help="their ids")
    parser.add_argument("--trials", type=int, nargs="*", default=[], help="their ids")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
