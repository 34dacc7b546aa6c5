"""The world of MPI processes that a launcher has started, checked for its size."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from detslurm.core.transports.choose import RankTopology, mpi_size
from detslurm.core.transports.health import DistributedError
from detslurm.core.transports.mpi.control import close_controls

_at_exit: list[bool] = []


def open_world(expected: int, environ: Mapping[str, str]) -> Any:
    """The communicator of all MPI processes.

    Raises `DistributedError` when they are not as many as expected.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as err:
        raise DistributedError(
            f"MPI can't be used: {err}. `pip install detslurm[mpi]` brings mpi4py and an MPI"
            " library; without MPI: DETSLURM_TRANSPORT=tcp"
        ) from err
    _prepare_exit(MPI)
    check_size(MPI.COMM_WORLD.Get_size(), expected, environ, MPI.Get_library_version())
    return MPI.COMM_WORLD


def check_size(found: int, expected: int, environ: Mapping[str, str], library: str = "") -> None:
    """Raise `DistributedError` with the remedy when MPI has not as many processes as there are."""
    if found == expected:
        return
    started = mpi_size(environ)
    name = library.split(",")[0].strip("\0 \n") or "the MPI library"
    raise DistributedError(
        f"MPI has {found} process{'es' if found > 1 else ''}, but {expected} were expected"
        + (f" (the launcher has started {started})" if started is not None else "")
        + f". {name} and what started this job don't match: start it with `srun --mpi=pmix`"
        " (Open MPI) or `srun --mpi=pmi2` (MPICH), use the mpirun of the same library, or do"
        " without MPI: DETSLURM_TRANSPORT=tcp"
    )


def topology_in(comm: Any, node: str) -> RankTopology:
    """The ranks of this process when those of one node name are one node."""
    nodes = comm.allgather(node)
    rank = comm.Get_rank()
    order = list(dict.fromkeys(nodes))
    here = nodes.count(node)
    return RankTopology(
        rank, len(nodes), nodes[:rank].count(node), here, order.index(node), len(order)
    )  # fmt: skip


def _prepare_exit(mpi: Any) -> None:
    """An uncaught exception must end the job: MPI_Finalize would wait for the others."""
    if _at_exit:
        return
    _at_exit.append(True)
    # Handlers run in reverse order: mpi4py has registered its MPI_Finalize at import, so ours is
    # first.
    atexit.register(close_controls)
    before = sys.excepthook

    def abort(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # The traceback first: Abort ends this process without running any further Python, and the
        # launcher's own message about it names no cause.
        before(kind, error, trace)
        sys.stderr.flush()
        sys.stdout.flush()
        if mpi.COMM_WORLD.Get_size() > 1 and not mpi.Is_finalized():
            mpi.COMM_WORLD.Abort(1)

    sys.excepthook = abort
