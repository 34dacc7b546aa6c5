"""The address at which the other nodes of a run find this node.

A name often leads to this machine alone: Debian and Ubuntu put 127.0.1.1 beside it in /etc/hosts.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"

_SIOCGIFADDR, _SIOCGIFCONF = 0x8915, 0x8912
_IFCONF = struct.Struct("iP")  # the size of a buffer, and where it is
# Its entries: a name, and an address behind its family and port, in a union as large as an ifmap.
_IFREQ = struct.Struct(f"16s4x4s{struct.calcsize('LLHBBB0L') - 8}x")
_GLOBAL = "00"  # a scope in /proc/net/if_inet6
_ELSEWHERE = ("192.0.2.1", "2001:db8::1")  # without a host: only for routing
_ASKED = 3  # so many other nodes show the way to all of them


def own_address(nodes: Sequence[str], rank: int, interface: str | None = None) -> str:
    """This node's address among `nodes`. Raises `OSError` where it has no such interface.

    By its names; where these lead nowhere else than here, the one from which it reaches the others.
    """
    if len(nodes) == 1:
        return LOOPBACK
    if interface:
        return interface_address(interface)
    names = dict.fromkeys((nodes[rank], socket.gethostname()))
    named = [address for name in names for address in addresses_of(name)]
    others = (address for node in nodes if node not in names for address in addresses_of(node))
    found = (
        [address for address in named if _is_own(address)]
        or _sources(islice(others, _ASKED))
        or named
        or _sources(_ELSEWHERE)
        or _of_interfaces()
    )
    return found[0] if found else LOOPBACK


def peer_address(node: str) -> str:
    """Where this node finds another node: its address, or its name without an address here."""
    return next(iter(addresses_of(node)), node)


def addresses_of(name: str) -> list[str]:
    """The addresses of a name that other nodes can use as well, IPv4 first."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    addresses = dict.fromkeys(str(where[0]) for _, _, _, _, where in found)
    return sorted(filter(_is_for_others, addresses), key=lambda address: ":" in address)


def in_url(address: str) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def _is_for_others(address: str) -> bool:
    import ipaddress  # here: an agent that is alone, as most are, has no use for it

    known = ipaddress.ip_address(address.partition("%")[0])
    return not (known.is_loopback or known.is_link_local or known.is_unspecified)


def _is_own(address: str) -> bool:
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _sources(targets: Iterable[str]) -> list[str]:
    """The addresses that this node uses towards others; nothing is sent for that."""
    found: dict[str, None] = {}
    for target in targets:
        try:
            with socket.socket(_family(target), socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                found[str(probe.getsockname()[0])] = None
        except OSError:
            continue
    return list(filter(_is_for_others, found))


def _of_interfaces() -> list[str]:
    """The addresses of all interfaces, those of real devices first."""
    names = [name for _, name in socket.if_nameindex()]
    names.sort(key=lambda name: not Path(f"/sys/class/net/{name}/device").exists())
    return [address for address in map(_address, names) if address and _is_for_others(address)]


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def interface_address(names: str) -> str:
    """The address of the first of these interfaces with an address, or OSError."""
    address = _address(first_interface(names))
    assert address is not None
    return address


def first_interface(names: str) -> str:
    """The first of these interfaces that has an address, or OSError."""
    for name in map(str.strip, names.split(",")):
        if _address(name) is not None:
            return name
    there = [name for _, name in socket.if_nameindex() if _address(name) is not None]
    raise OSError(
        f"{os.uname().nodename} has no network interface {names} with an address;"
        f" it has {', '.join(there)}"
    )


def interface_with(address: str) -> str | None:
    """The interface that has this address, among others or alone.

    Sites that route to each node itself give its address to `lo`, of which others take 127.0.0.1:
    it is none of that address.
    """
    wanted = address.partition("%")[0]
    every = chain(_rows(), ((name, found) for name, found, _ in _rows6()))
    names = (name for name, found in every if found == wanted)
    return next((name for name in names if name != "lo" or _address(name) == wanted), None)


def socket_interfaces(names: str | None, address: str) -> dict[str, str]:
    """The variables by which Gloo and NCCL find the nodes' network: the interface that was asked
    for, else the interface of this node's address. Raises `OSError` where this node lacks it."""
    if names:
        interface = first_interface(names)
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    # Else gloo takes the address of the host's name, which may lead nowhere but here.
    found = interface_with(address)
    return {"GLOO_SOCKET_IFNAME": found} if found else {}


def _rows() -> Iterator[tuple[str, str]]:
    """The interfaces with their IPv4 addresses, of which each may have several."""
    from array import array  # here: few nodes ask

    size = 64 * _IFREQ.size
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        while True:
            rows = array("B", bytes(size))
            request = _IFCONF.pack(size, rows.buffer_info()[0])
            length, _ = _IFCONF.unpack(fcntl.ioctl(sock, _SIOCGIFCONF, request))
            if length < size:
                break
            size *= 2  # what did not fit was left out
    for name, address in _IFREQ.iter_unpack(rows[:length]):
        label = os.fsdecode(name.rstrip(b"\0"))  # "eth0:1" where a further address was named so
        yield label.partition(":")[0], socket.inet_ntoa(address)


def _address(name: str) -> str | None:
    """The IPv4 address of an interface, else its global IPv6 address."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            return socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24])
        except OSError:
            return _address6(name)


def _address6(name: str) -> str | None:
    found = (address for known, address, scope in _rows6() if (known, scope) == (name, _GLOBAL))
    return next(found, None)


def _rows6() -> Iterator[tuple[str, str, str]]:
    """The interfaces with their IPv6 addresses and the scopes of these."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return
    for digits, _, _, scope, _, name in map(str.split, lines):
        yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)), scope
