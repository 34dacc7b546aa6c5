"""Build the communicators of a rank from the transports that serve it."""

from __future__ import annotations

import ipaddress
import os
import socket
from importlib.util import find_spec
from typing import Any, NamedTuple

from detslurm._base.addresses import LOOPBACK
from detslurm._base.identity import (
    derived_ports,
    key_of,
    run_name,
    secret_of_user,
    secret_on_node,
    socket_names,
)
from detslurm.core.transports.call_sequence import CallSequence
from detslurm.core.transports.choose import RankTopology, TransportChoice, choose
from detslurm.core.transports.health import Health
from detslurm.core.transports.link import Communicator
from detslurm.core.transports.process_group import ProcessGroup
from detslurm.core.transports.sockets.communicator import SocketCommunicator
from detslurm.core.transports.sockets.rendezvous import ANY_ADDRESS, Rendezvous, host, join


class TransportOptions(NamedTuple):
    """The user's request."""

    transport: str = "auto"
    chief_ip: str | None = None
    ports: tuple[int, ...] = ()  # empty: derived from the run
    force_tcp: bool = False
    comm: Any = None
    salt: str = ""


def build_process_group(topology: RankTopology, options: TransportOptions) -> ProcessGroup:
    """Connect to all peers; returns when everybody has joined."""
    environ = dict(os.environ)
    mpi4py = options.transport == "auto" and find_spec("mpi4py") is not None
    choice = choose(
        topology, options.transport, environ, force_tcp=options.force_tcp, mpi4py=mpi4py
    )
    builder = _Builder(topology, options, choice, environ)
    try:
        local, cross = builder.local(), builder.cross()
        flat = choice.local == "mpi"
        group = ProcessGroup(topology, local, cross, builder.sequence, builder.health, flat=flat)
        group.join()
    except BaseException as err:
        # Also for KeyboardInterrupt: ranks that have joined would wait for this one until their
        # timeout.
        builder.give_up(f"rank {topology.rank} could not join: {err}")
        raise
    return group


class _Builder:
    def __init__(
        self,
        topology: RankTopology,
        options: TransportOptions,
        choice: TransportChoice,
        environ: dict[str, str],
    ) -> None:
        self._topology, self._options = topology, options
        self._choice, self._environ = choice, environ
        self.sequence, self.health = CallSequence(), Health()
        self._communicators: list[Communicator] = []
        if choice.local == "mpi" or (choice.cross == "mpi" and topology.local_rank == 0):
            self._world = self._open_mpi()

    def give_up(self, reason: str) -> None:
        """Report the reason to the others, and leave."""
        self.health.fail(reason)
        for communicator in self._communicators:
            communicator.close()

    def local(self) -> Communicator | None:
        """The communicator of this node."""
        topology = self._topology
        names = [
            f"local rank {i} of node {topology.cross_rank}" for i in range(topology.local_size)
        ]
        if self._choice.local == "mpi":  # all take part in making it, also a rank that is alone
            comm = self._world.Split(topology.cross_rank, topology.local_rank)
            return self._mpi_communicator(comm, names) if topology.local_size > 1 else None
        if topology.local_size == 1:
            return None
        what = f"the processes of node {topology.cross_rank}"
        return self._socket_communicator(topology.local_rank, names, self._local_rendezvous(), what)

    def cross(self) -> Communicator | None:
        """The communicator of the local chiefs (None for other ranks), or of everybody."""
        topology = self._topology
        if self._choice.local == "mpi":
            names = [f"rank {i}" for i in range(topology.size)]
            return self._mpi_communicator(self._world.Split(0, topology.rank), names)
        if topology.local_rank != 0 or topology.local_size == topology.size:
            return None
        names = [f"the local chief of node {i}" for i in range(topology.cross_size)]
        if self._choice.cross == "mpi":
            return self._mpi_communicator(self._world.Split(0, topology.cross_rank), names)
        what = "the local chiefs of the nodes"
        return self._socket_communicator(topology.cross_rank, names, self._cross_rendezvous(), what)

    # -- MPI ---------------------------------------------------------------------------------------

    def _open_mpi(self) -> Any:
        from detslurm.core.transports.mpi import world

        topology = self._topology
        expected = topology.size if self._choice.local == "mpi" else topology.cross_size
        if self._options.comm is None:
            return world.open_world(expected, self._environ)
        world.check_size(self._options.comm.Get_size(), expected, self._environ)
        return self._options.comm

    def _mpi_communicator(self, comm: Any, names: list[str]) -> Communicator:
        from mpi4py import MPI

        from detslurm.core.transports.mpi.communicator import MpiCommunicator

        communicator = MpiCommunicator(MPI, comm, names, self.sequence, self.health)
        self._communicators.append(communicator)
        return communicator

    # -- sockets -----------------------------------------------------------------------------------

    def _socket_communicator(
        self, index: int, names: list[str], rendezvous: Rendezvous, what: str
    ) -> Communicator:
        pairs = (
            host(rendezvous, len(names), what) if index == 0 else {0: join(rendezvous, index, what)}
        )
        communicator = SocketCommunicator(index, names, pairs, self.sequence, self.health)
        self._communicators.append(communicator)
        return communicator

    def _local_rendezvous(self) -> Rendezvous:
        options, topology = self._options, self._topology
        name = self._name("node", topology.cross_rank)
        if self._choice.local == "unix":
            key = key_of(name, secret_on_node(self._environ))
            return Rendezvous(socket_names(key), key)
        key = key_of(name, secret_of_user(self._environ))
        alone = topology.local_size == topology.size
        ports = options.ports if options.ports and alone else tuple(derived_ports(key))
        return Rendezvous([(LOOPBACK, port) for port in ports], key, chosen=bool(options.ports))

    def _cross_rendezvous(self) -> Rendezvous:
        chief = self._options.chief_ip
        assert chief is not None
        name = self._name("chiefs")
        key = key_of(name, secret_of_user(self._environ))
        ports = self._options.ports or derived_ports(key)
        chosen = bool(self._options.ports)
        return Rendezvous([(chief, port) for port in ports], key, chosen, interface_of(chief))

    def _name(self, *more: object) -> str:
        options, topology = self._options, self._topology
        return run_name(self._environ, options.salt, *options.ports, topology.size, *more)


def interface_of(chief: str) -> str | None:
    """Where the chief listens when it is known by this name: there, or (None) at that address.

    Many hosts know their own name as a loopback address, or are reached through another address.
    """
    try:
        found = socket.getaddrinfo(chief, 0, type=socket.SOCK_STREAM)[0]
    except OSError:
        return ANY_ADDRESS
    family, address = found[0], str(found[4][0])
    loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
    if loopback:
        return None if chief == "localhost" or chief == address else ANY_ADDRESS
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return ANY_ADDRESS
    return None
