"""A port for the processes of a run to meet at: from the job's id, checked, and kept until used."""

from __future__ import annotations

import binascii
import socket
from itertools import product
from typing import NamedTuple

# Below the ports that Linux gives to outgoing connections, above those of services.
_LOWEST, _HIGHEST = 20000, 32000
_ATTEMPTS = 64


class Reservation(NamedTuple):
    """A port of this node that is one run's as long as this is open."""

    port: int
    held: socket.socket
    sign: socket.socket

    def close(self) -> None:
        """Let others have it."""
        self.held.close()
        self.sign.close()


def candidates(name: str) -> list[int]:
    """The ports of a run in the order to try them: others' runs have others."""
    # Of a hash function all agents would load a library.
    sums = (binascii.crc32(f"{name}.{n}".encode()) for n in range(_ATTEMPTS))
    return [_LOWEST + value % (_HIGHEST - _LOWEST) for value in sums]


def reserve(name: str) -> Reservation:
    """The first free port of the run's ports, else any.

    A bound socket that never listens keeps it: no process gets that port by chance, while a server
    that asks for exactly this port, as servers do with SO_REUSEADDR, gets it. Another run's
    reservation could bind as well; so each puts up a sign, a local socket named after the port.
    """
    error: OSError | None = None
    # A sign is an advice, for anybody can put it up; and where all ports are taken any other does.
    for with_sign, wanted in [*product((True, False), candidates(name)), (False, 0)]:
        sign = socket.socket(socket.AF_UNIX)
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if with_sign:
                sign.bind(f"\0detslurm-port-{wanted}")
            held.bind(("", wanted))
            port = held.getsockname()[1]
            if not _listened_on(port):
                return Reservation(port, held, sign)
        except OSError as err:
            error = err
        held.close()
        sign.close()
    raise error or OSError(f"every port of {name} is in use on this node")


def _listened_on(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
