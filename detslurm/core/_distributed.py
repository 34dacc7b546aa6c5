"""The peers of a process in its trial."""

from __future__ import annotations

import os
import pickle
import socket
from typing import Any

from detslurm._base import contract
from detslurm._base.display import Displayed
from detslurm.core._launched import (
    DEEPSPEED,
    PUB_PORT,
    PULL_PORT,
    TORCH,
    Numbers,
    checked_topology,
    chief_address,
    chosen_port_offset,
    explicit_ports,
    slurm_tasks,
    topology_by_slurm,
    topology_by_tf_config,
)
from detslurm.core.transports.call_sequence import Scope
from detslurm.core.transports.choose import RankTopology, mpi_size
from detslurm.core.transports.health import DistributedError


class DistributedContext(Displayed):
    """Rank and size of this process, and simple collectives among the ranks of the trial.

    Give all six ranks and sizes, or none of them for a single process. The constructor, and each
    method that makes a context, returns when all ranks have joined.

    Every rank must make the same calls in the same order. A call raises `DistributedError` when
    ranks disagree, when a rank has died or left, or when its call was cut short (Ctrl-C, a signal
    handler that raises); after that no further call succeeds.

    Args:
        rank: This process among all of the trial, from 0, which is the chief. Default: 0.
        size: The number of processes of the trial. Default: 1.
        local_rank: This process among those of its node, from 0. Default: 0.
        local_size: The number of processes of this node. Default: 1.
        cross_rank: This node among those of the trial, from 0. Default: 0.
        cross_size: The number of nodes. Default: 1.
        chief_ip: The address of rank 0; needed with several nodes, except over MPI. No default.
        pub_port: The TCP port on which the chief listens. By default, as long as none of the three
            settings of ports is given, free ports are derived from the ids of the run;
            INTER_TRAIN_PROCESS_COMM_PORT_1 overrides it.
        pull_port: The TCP port to take when `pub_port` is in use. Default: see `pub_port`;
            INTER_TRAIN_PROCESS_COMM_PORT_2 overrides it.
        port_offset: Added to both ports, for several trials on one node. Default: 0.
        force_tcp: Whether the processes of a node use TCP in place of Unix sockets; off by default.
        transport: "auto", "mpi", "local" or "tcp". Default: DETSLURM_TRANSPORT, else "auto".

    Raises:
        ValueError: If some of the six ranks and sizes are missing, or don't fit together; or if
            there are several nodes and `chief_ip` is missing.
        DistributedError: If the ranks can't meet.
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        size: int | None = None,
        local_rank: int | None = None,
        local_size: int | None = None,
        cross_rank: int | None = None,
        cross_size: int | None = None,
        chief_ip: str | None = None,
        pub_port: int = PUB_PORT,
        pull_port: int = PULL_PORT,
        port_offset: int = 0,
        force_tcp: bool = False,
        transport: str | None = None,
        _comm: Any = None,
        _salt: str = "",
    ) -> None:
        topology = checked_topology(rank, size, local_rank, local_size, cross_rank, cross_size)
        self.rank, self.size = topology.rank, topology.size
        self.local_rank, self.local_size = topology.local_rank, topology.local_size
        self.cross_rank, self.cross_size = topology.cross_rank, topology.cross_size
        self._group: Any = None
        self._fast_path: Any = None
        if self.size == 1:
            return
        from detslurm.core._gloo import await_gloo_at_exit
        from detslurm.core.transports.build import TransportOptions, build_process_group

        await_gloo_at_exit()
        requested = transport or os.environ.get(contract.TRANSPORT) or "auto"
        if self.local_size != self.size and requested != "mpi" and _comm is None:
            _need_chief(chief_ip, self.cross_size)
        ports = explicit_ports(os.environ, pub_port, pull_port, port_offset)
        self._group = build_process_group(
            topology, TransportOptions(requested, chief_ip, ports, force_tcp, _comm, _salt)
        )
        self._fast_path = self._group.fast_path()

    def _facts(self) -> dict[str, Any]:
        names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Make the context of a process that torchrun, or a launcher like it, has started; all else
        raises `KeyError`. `chief_ip` is the address of rank 0; by default DET_CHIEF_IP, else
        MASTER_ADDR.
        """
        return cls._by_variables("torch.distributed's launcher", TORCH, chief_ip)

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Make the context of a process that DeepSpeed's launcher has started. Arguments and errors
        as in `from_torch_distributed`.
        """
        return cls._by_variables("deepspeed's launcher", DEEPSPEED, chief_ip)

    @classmethod
    def _by_variables(
        cls, launcher: str, names: tuple[str, ...], chief_ip: str | None
    ) -> DistributedContext:
        env = Numbers(launcher)
        return cls(
            **RankTopology(*(env[name] for name in names))._asdict(),
            chief_ip=chief_address(chief_ip),
            port_offset=chosen_port_offset(),
        )

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """Make the context of a process in which `hvd.init()` was called.

        Args:
            hvd: The module, such as `horovod.torch`.
            chief_ip: The address of rank 0. Default: DET_CHIEF_IP, else MASTER_ADDR.

        Raises:
            DistributedError: If MPI's launcher has started several processes, and Horovod took each
                of them for a world of its own.
        """
        started = mpi_size(os.environ) or 1
        if hvd.size() == 1 and started > 1:
            raise DistributedError(
                f"Horovod has 1 process, but {started} were started: it was built without MPI, or"
                " with another one than that of mpirun or srun; `horovodrun --check-build` shows it"
            )
        # Horovod's own thread calls MPI all the time, and not every MPI serves a second thread.
        sockets = "local" if hvd.local_size() == hvd.size() else "tcp"
        return cls(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
            chief_ip=chief_address(chief_ip),
            port_offset=chosen_port_offset(),
            transport=os.environ.get(contract.TRANSPORT) or sockets,
        )

    @classmethod
    def from_tf_config(cls) -> tuple[DistributedContext, Any]:
        """Make the context of a TensorFlow worker from TF_CONFIG, and the strategy to train with.

        Returns:
            The context, and the strategy: `MultiWorkerMirroredStrategy` with several workers, else
            `MirroredStrategy` with several GPUs, else TensorFlow's own. Without TF_CONFIG the
            process is alone.

        Raises:
            ValueError: If TF_CONFIG does not describe a chief or a worker among workers.
        """
        import tensorflow as tf

        topology, chief = topology_by_tf_config(os.environ.get("TF_CONFIG", ""))
        if topology.size > 1:
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        elif len(tf.config.list_physical_devices("GPU")) > 1:
            strategy = tf.distribute.MirroredStrategy()
        else:
            strategy = tf.distribute.get_strategy()
        context = cls(**topology._asdict(), chief_ip=chief, port_offset=chosen_port_offset())
        return context, strategy

    @classmethod
    def from_mpi(cls, comm: Any = None) -> DistributedContext:
        """Make the context of an MPI process. `comm` is an mpi4py communicator whose processes are
        the ranks; by default all processes are.

        Raises:
            DistributedError: If MPI came up with fewer processes than its launcher has started.
        """
        from detslurm.core.transports.mpi import world

        if comm is None:
            environ = dict(os.environ)
            expected = mpi_size(environ) or slurm_tasks(environ)
            comm = world.open_world(expected, environ)
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        topology = world.topology_in(comm, node)
        if topology.size == 1:
            return cls()
        return cls(**topology._asdict(), transport="mpi", _comm=comm)

    @classmethod
    def from_slurm(cls, chief_ip: str | None = None) -> DistributedContext:
        """Make the context of a task of an `srun` step that has one process for each task; all else
        raises `KeyError`. `chief_ip` is the address of rank 0; by default DET_CHIEF_IP, else the
        node where the step has put rank 0.
        """
        topology, first = topology_by_slurm()
        return cls(
            **topology._asdict(),
            chief_ip=chief_ip or os.environ.get(contract.CHIEF_IP) or first,
            port_offset=chosen_port_offset(),
            _salt=f"step {os.environ.get('SLURM_STEP_ID', '')}",
        )

    def get_rank(self) -> int:
        """Return this process's number among all of the trial, from 0."""
        return self.rank

    def get_local_rank(self) -> int:
        """Return this process's number among those of the trial on this node, from 0."""
        return self.local_rank

    def get_size(self) -> int:
        """Return the number of processes of the trial."""
        return self.size

    def get_num_agents(self) -> int:
        """Return the number of nodes of the trial."""
        return self.cross_size

    def gather(self, stuff: Any) -> list[Any] | None:
        """Bring a picklable object `stuff` of each rank to the chief: return them by rank there,
        None on workers.
        """
        if self._fast_path is not None:
            found: list[Any] | None = self._fast_path.gather(stuff)
            return found
        return self._gather(Scope.ALL, self.rank, self.size, stuff)

    def gather_local(self, stuff: Any) -> list[Any] | None:
        """As `gather` among the ranks of this node: return the objects `stuff` by local rank on the
        local chief, None on the others.
        """
        return self._gather(Scope.LOCAL, self.local_rank, self.local_size, stuff)

    def allgather(self, stuff: Any) -> list[Any]:
        """Bring a picklable object `stuff` of each rank to all ranks: return them by rank."""
        if self._fast_path is not None:
            found: list[Any] = self._fast_path.allgather(stuff)
            return found
        return self._allgather(Scope.ALL, self.rank, self.size, stuff)

    def allgather_local(self, stuff: Any) -> list[Any]:
        """As `allgather` among the ranks of this node: return the objects `stuff` by local rank."""
        return self._allgather(Scope.LOCAL, self.local_rank, self.local_size, stuff)

    def broadcast(self, stuff: Any) -> Any:
        """Return the chief's picklable object `stuff` on all ranks; that of workers is ignored."""
        if self._fast_path is not None:
            return self._fast_path.broadcast(stuff)
        return self._broadcast(Scope.ALL, self.rank, self.size, stuff)

    def broadcast_local(self, stuff: Any = None) -> Any:
        """As `broadcast` among the ranks of this node: return the local chief's `stuff`, which is
        None by default.
        """
        return self._broadcast(Scope.LOCAL, self.local_rank, self.local_size, stuff)

    def close(self) -> None:
        """Leave the group of peers; calling it again does nothing."""
        group, self._group, self._fast_path = self._group, None, None
        if group is not None:
            group.close()

    def _gather(self, scope: Scope, rank: int, size: int, stuff: Any) -> list[Any] | None:
        if size < 2:
            return [stuff]
        found = self._open().gather(scope, b"" if rank == 0 else self._pickled(stuff))
        if found is None:
            return None
        return [stuff, *map(pickle.loads, found[1:])]

    def _allgather(self, scope: Scope, rank: int, size: int, stuff: Any) -> list[Any]:
        if size < 2:
            return [stuff]
        found = self._open().allgather(scope, self._pickled(stuff))
        return [stuff if i == rank else pickle.loads(part) for i, part in enumerate(found)]

    def _broadcast(self, scope: Scope, rank: int, size: int, stuff: Any) -> Any:
        if size < 2:
            return stuff
        if rank == 0:
            self._open().broadcast(scope, self._pickled(stuff))
            return stuff
        return pickle.loads(self._open().broadcast(scope, None)[0])

    def _open(self) -> Any:
        if self._group is None:
            raise RuntimeError("this DistributedContext was closed")
        return self._group

    def _pickled(self, stuff: Any) -> bytes:
        try:
            return pickle.dumps(stuff, protocol=5)
        except Exception as err:
            if self._group is not None:  # the others would wait for what can't be sent
                self._group.fail(f"rank {self.rank} passed an object that can't be pickled: {err}")
            raise


def _need_chief(chief_ip: str | None, nodes: int) -> None:
    if chief_ip is None:
        raise ValueError(
            f"The trial has {nodes} nodes, and the address of rank 0 is not known. Give it as"
            " chief_ip, or in the variable MASTER_ADDR or DET_CHIEF_IP."
        )
