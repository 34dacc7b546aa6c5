"""A port for the processes of a run to meet at: from the job's id, checked, and kept until used."""

from __future__ import annotations

import hashlib
import socket

# Below the ports that Linux gives to outgoing connections, above those of services.
_LOWEST, _HIGHEST = 20000, 32000
_ATTEMPTS = 64


def candidates(name: str) -> list[int]:
    """The ports of a run in the order to try them: others' runs have others."""
    digest = (hashlib.sha256(f"{name}.{n}".encode()).digest() for n in range(_ATTEMPTS))
    return [_LOWEST + int.from_bytes(d[:4], "big") % (_HIGHEST - _LOWEST) for d in digest]


def reserve(name: str) -> socket.socket:
    """A socket on the first of the run's ports that nobody uses; its owner never listens on it.

    As long as it is open nobody is given that port by chance, while a server that asks for exactly
    this port, as servers do with SO_REUSEADDR, gets it. Raises `OSError` when all are taken.
    """
    error: OSError | None = None
    for port in candidates(name):
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind(("", port))
            if not _listened_on(port):
                return held
        except OSError as err:
            error = err
        held.close()
    raise error or OSError(f"every port of {name} is in use on this node")


def _listened_on(port: int) -> bool:
    # Another run's reservation binds as gladly as ours: only a listener shows here.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
