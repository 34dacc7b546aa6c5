"""Chooses the transports of ranks from the environment, the same way in every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TRANSPORTS = ("auto", "mpi", "local", "tcp")


class RankTopology(NamedTuple):
    """Rank and size of a process in its trial, on its node, and of its node among the nodes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class TransportChoice(NamedTuple):
    """The kinds of links: inside a node, and between nodes."""

    local: str  # mpi, unix or tcp
    cross: str  # mpi or tcp


def choose(
    topology: RankTopology,
    requested: str,
    environ: Mapping[str, str],
    *,
    force_tcp: bool,
    mpi4py: bool,
) -> TransportChoice:
    """The transports of this trial. Raises `ValueError` when the request can't be met."""
    if requested not in TRANSPORTS:
        raise ValueError(f"transport {requested!r} is not one of {', '.join(TRANSPORTS)}")
    if requested == "local" and topology.local_size != topology.size:
        raise ValueError("transport 'local' serves the processes of one node; there are several")
    if requested == "tcp" or (force_tcp and requested == "auto"):
        return TransportChoice("tcp", "tcp")
    inside = "tcp" if force_tcp else "unix"
    started = mpi_size(environ)
    everybody = started == topology.size or (started is None and requested == "mpi")
    if requested == "mpi" or (requested == "auto" and mpi4py):
        if everybody:
            return TransportChoice("mpi", "mpi")
        if started == topology.cross_size and topology.cross_size > 1:
            return TransportChoice(inside, "mpi")
    if requested == "mpi":
        raise ValueError(
            f"transport 'mpi' with {topology.size} ranks on {topology.cross_size} nodes, but MPI"
            f" was started with {started} processes; start every rank, or one per node, under"
            " `srun --mpi=pmix` or mpirun, or set DETSLURM_TRANSPORT=tcp"
        )
    return TransportChoice(inside, "tcp")


def mpi_size(environ: Mapping[str, str]) -> int | None:
    """The number of processes that MPI's launcher has started, or None without a launcher."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    if {"PMIX_RANK", "PMI_RANK"}.isdisjoint(environ):
        return None
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return None
