"""The facts of a cluster's nodes, as the job of `detslurm selftest` finds them."""

from __future__ import annotations

import msgspec


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a task of the job finds on its node. Absent means unknown."""

    time: float  # the node's clock, in seconds since 1970
    utc_offset: int  # seconds by which the node's own time zone is ahead, whatever TZ is
    store: str | None = None  # why the directory in the store can't be used
    owner: int | None = None  # the user id that owns a new file in the store
    tmp: str = "/tmp"
    tmp_free: int | None = None  # bytes
    tmp_problem: str | None = None  # why a megabyte can't be written there
    tmp_exec: bool | None = None  # whether a program can be started from there
    controller: str | None = None  # why Slurm's controller does not answer there


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one `srun` on one node."""

    node: str
    facts: NodeFacts | None = None  # None: its task did not answer
    asked: float = 0.0  # before the srun, by the clock of the job's first node
    answered: float = 0.0  # after it, by the same clock
    printed: str = ""  # the lines on stdout that are not the task's
    error: str = ""  # the last lines on stderr


class NodesFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the job has found."""

    answers: tuple[NodeAnswer, ...]
    pmix_wanted: int = 0  # ranks of a step of `srun --mpi=pmix`; 0: there is no such plugin
    pmix_ranks: int = 0  # how many of them PMIx has given a number
    pmix_error: str = ""  # the last lines of that step on stderr
    calls: int = 0  # of Slurm's programs, by the job
