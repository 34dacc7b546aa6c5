"""Put the stars of a rank together from the transports that serve it."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from detslurm._identity import (
    derived_ports,
    key_of,
    run_name,
    secret_of_user,
    secret_on_node,
    socket_names,
)
from detslurm.core.transports.choose import Choice, Place, choose
from detslurm.core.transports.door import Pair
from detslurm.core.transports.health import Health
from detslurm.core.transports.link import AnyStar, Link, Membership
from detslurm.core.transports.order import Ledger
from detslurm.core.transports.rendezvous import EVERYWHERE, Meeting, host, join
from detslurm.core.transports.sockets import SocketLink
from detslurm.core.transports.star import Star
from detslurm.core.transports.team import Stars, Team
from detslurm.core.transports.watch import Watch

LOOPBACK = "127.0.0.1"


class Wishes(NamedTuple):
    """What the user has asked for."""

    transport: str = "auto"
    chief_ip: str | None = None
    ports: tuple[int, ...] = ()  # empty: derived from the run
    force_tcp: bool = False
    comm: Any = None
    salt: str = ""


def build_team(place: Place, wishes: Wishes) -> Team:
    """Connect to all peers; returns when everybody has joined."""
    environ = dict(os.environ)
    mpi4py = wishes.transport == "auto" and find_spec("mpi4py") is not None
    choice = choose(place, wishes.transport, environ, force_tcp=wishes.force_tcp, mpi4py=mpi4py)
    builder = _Builder(place, wishes, choice, environ)
    try:
        stars = Stars(builder.local(), builder.cross(), flat=choice.local == "mpi")
        team = Team(place, stars, builder.ledger, builder.health)
        team.join()
    except BaseException as err:
        builder.give_up(f"rank {place.rank} could not join: {err}")
        raise
    return team


class _Builder:
    def __init__(
        self, place: Place, wishes: Wishes, choice: Choice, environ: dict[str, str]
    ) -> None:
        self._place, self._wishes, self._choice, self._environ = place, wishes, choice, environ
        self.ledger, self.health = Ledger(), Health()
        self._stars: list[AnyStar] = []
        if choice.local == "mpi" or (choice.cross == "mpi" and place.local_rank == 0):
            self._world = self._meet_in_mpi()

    def give_up(self, reason: str) -> None:
        """Let the others know, and leave."""
        self.health.fail(reason)
        for star in self._stars:
            star.close()

    def local(self) -> AnyStar | None:
        """The star of this node."""
        place = self._place
        names = [f"local rank {i} of node {place.cross_rank}" for i in range(place.local_size)]
        if self._choice.local == "mpi":  # all take part in making it, also who is alone
            comm = self._world.Split(place.cross_rank, place.local_rank)
            return self._mpi_star(comm, names) if place.local_size > 1 else None
        if place.local_size == 1:
            return None
        what = f"the processes of node {place.cross_rank}"
        return self._socket_star(place.local_rank, names, self._local_meeting(), what)

    def cross(self) -> AnyStar | None:
        """The star of the local chiefs, for those who are one, or of everybody."""
        place = self._place
        if self._choice.local == "mpi":
            names = [f"rank {i}" for i in range(place.size)]
            return self._mpi_star(self._world.Split(0, place.rank), names)
        if place.local_rank != 0 or place.local_size == place.size:
            return None
        names = [f"the local chief of node {i}" for i in range(place.cross_size)]
        if self._choice.cross == "mpi":
            return self._mpi_star(self._world.Split(0, place.cross_rank), names)
        what = "the local chiefs of the nodes"
        return self._socket_star(place.cross_rank, names, self._cross_meeting(), what)

    # -- MPI ---------------------------------------------------------------------------------------

    def _meet_in_mpi(self) -> Any:
        from detslurm.core.transports import mpiworld

        place = self._place
        expected = place.size if self._choice.local == "mpi" else place.cross_size
        if self._wishes.comm is None:
            return mpiworld.open_world(expected, self._environ)
        mpiworld.check_size(self._wishes.comm.Get_size(), expected, self._environ)
        return self._wishes.comm

    def _mpi_star(self, comm: Any, names: list[str]) -> AnyStar:
        from mpi4py import MPI

        from detslurm.core.transports.mpi import MpiStar

        star = MpiStar(MPI, comm, names, self.ledger, self.health)
        self._stars.append(star)
        return star

    # -- sockets -----------------------------------------------------------------------------------

    def _socket_star(self, index: int, names: list[str], meeting: Meeting, what: str) -> AnyStar:
        pairs = host(meeting, len(names), what) if index == 0 else {0: join(meeting, index, what)}
        found = _over_sockets(pairs, names, self.health)
        star = Star(index, names, found, self.ledger, self.health)
        self._stars.append(star)
        return star

    def _local_meeting(self) -> Meeting:
        wishes, place = self._wishes, self._place
        name = self._name("node", place.cross_rank)
        if self._choice.local == "unix":
            key = key_of(name, secret_on_node(self._environ))
            return Meeting(socket_names(key), key)
        key = key_of(name, secret_of_user(self._environ))
        alone = place.local_size == place.size
        ports = wishes.ports if wishes.ports and alone else tuple(derived_ports(key))
        return Meeting([(LOOPBACK, port) for port in ports], key, chosen=bool(wishes.ports))

    def _cross_meeting(self) -> Meeting:
        chief = self._wishes.chief_ip
        assert chief is not None
        name = self._name("chiefs")
        key = key_of(name, secret_of_user(self._environ))
        ports = self._wishes.ports or derived_ports(key)
        chosen = bool(self._wishes.ports)
        return Meeting([(chief, port) for port in ports], key, chosen, interface_of(chief))

    def _name(self, *more: object) -> str:
        wishes, place = self._wishes, self._place
        return run_name(self._environ, wishes.salt, *wishes.ports, place.size, *more)


def _over_sockets(pairs: Mapping[int, Pair], names: list[str], health: Health) -> Membership:
    watch = Watch({i: pair.control for i, pair in pairs.items()}, names.__getitem__, health)
    on_wait: list[Callable[[], None]] = []

    def link(peer: int, pair: Pair) -> Link:
        return SocketLink(
            pair.data, lambda: names[peer], health, on_wait, lambda: watch.explain(peer)
        )

    return Membership({i: link(i, pair) for i, pair in pairs.items()}, watch, on_wait)


def interface_of(chief: str) -> str | None:
    """Where the chief listens when it is known by this name: there, or (None) at that address.

    Many hosts know their own name as a loopback address, or are reached through another one.
    """
    try:
        found = socket.getaddrinfo(chief, 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        return EVERYWHERE
    family, address = found[0], str(found[4][0])
    loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    if loopback:
        return None if chief == "localhost" or chief == address else EVERYWHERE
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return EVERYWHERE
    return None
