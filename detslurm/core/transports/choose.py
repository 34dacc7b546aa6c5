"""Which transport serves which ranks: decided from the environment, the same way in every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

WISHES = ("auto", "mpi", "local", "tcp")


class Place(NamedTuple):
    """Where a process stands among the processes of its trial."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class Choice(NamedTuple):
    """What the links are made of: inside a node, and between nodes."""

    local: str  # mpi, unix or tcp
    cross: str  # mpi or tcp


def choose(
    place: Place, wish: str, environ: Mapping[str, str], *, force_tcp: bool, mpi4py: bool
) -> Choice:
    """The transports of this trial. Raises `ValueError` when the wish can't be served."""
    if wish not in WISHES:
        raise ValueError(f"transport {wish!r} is none of {', '.join(WISHES)}")
    if wish == "local" and place.local_size != place.size:
        raise ValueError("transport 'local' serves the processes of one node; there are several")
    if wish == "tcp" or (force_tcp and wish == "auto"):
        return Choice("tcp", "tcp")
    inside = "tcp" if force_tcp else "unix"
    told = mpi_size(environ)
    everybody = told == place.size or (told is None and wish == "mpi")
    if wish == "mpi" or (wish == "auto" and mpi4py):
        if everybody:
            return Choice("mpi", "mpi")
        if told == place.cross_size and place.cross_size > 1:
            return Choice(inside, "mpi")
    if wish == "mpi":
        raise ValueError(
            f"transport 'mpi' with {place.size} ranks on {place.cross_size} nodes, but MPI was"
            f" started with {told} processes; start every rank, or one per node, under"
            " `srun --mpi=pmix` or mpirun, or set DETSLURM_TRANSPORT=tcp"
        )
    return Choice(inside, "tcp")


def mpi_size(environ: Mapping[str, str]) -> int | None:
    """How many processes MPI's launcher says it has started, if there is one."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    if {"PMIX_RANK", "PMI_RANK"}.isdisjoint(environ):
        return None
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    return None
