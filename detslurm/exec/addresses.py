"""The address at which the other nodes of a run find this one."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

INTERFACE_ENV = "DET_INTER_NODE_NETWORK_INTERFACE"
"""The network interface between nodes, or several by comma: the first that a node has counts."""

_SIOCGIFADDR = 0x8915


def interface_of(config: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    """The interface that was asked for: by the variable, else by `slurm.network_interface`."""
    return env.get(INTERFACE_ENV) or (config.get("slurm") or {}).get("network_interface")


def own_address(nodes: Sequence[str], rank: int, interface: str | None = None) -> str:
    """This node's address among `nodes`. Raises `OSError` where it has no such interface."""
    if len(nodes) == 1:
        return "127.0.0.1"
    if interface:
        return interface_address(interface)
    for name in (nodes[rank], socket.gethostname()):
        try:
            return socket.gethostbyname(name)
        except OSError:
            continue
    return "127.0.0.1"


def interface_address(names: str) -> str:
    """The IPv4 address of the first of these interfaces that has one, or OSError."""
    address = _address(first_interface(names))
    assert address is not None
    return address


def first_interface(names: str) -> str:
    """The first of these interfaces that has an IPv4 address, or OSError."""
    for name in map(str.strip, names.split(",")):
        if _address(name) is not None:
            return name
    there = [name for _, name in socket.if_nameindex() if _address(name) is not None]
    raise OSError(
        f"{os.uname().nodename} has no network interface {names} with an IPv4 address;"
        f" it has {', '.join(there)}"
    )


def _address(name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None
