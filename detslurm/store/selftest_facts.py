"""The facts of a cluster's nodes, as the job of `detslurm selftest` finds them."""

from __future__ import annotations

import msgspec


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a task of the job finds on its node.

    Attributes:
        time: The node's clock, in seconds since 1970.
        utc_offset: The seconds by which the node's own time zone is ahead of UTC, whatever TZ is.
        store: Why the scratch directory in the store can't be used; None if it can.
        owner: The user id that owns a new file in the store; None if there is none.
        tmp: The directory for temporary files.
        tmp_free: The bytes that are free there; None if unknown.
        tmp_problem: Why a megabyte can't be written there; None if it can.
        tmp_exec: Whether a program can be started from there; None if it could not be tried.
        controller: Why Slurm's controller does not answer there; None if it does.
    """

    time: float
    utc_offset: int
    store: str | None = None
    owner: int | None = None
    tmp: str = "/tmp"
    tmp_free: int | None = None
    tmp_problem: str | None = None
    tmp_exec: bool | None = None
    controller: str | None = None


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one `srun` on one node.

    Attributes:
        node: The name of the node.
        facts: The facts that its task found; None if it did not answer.
        asked: The time before the srun, by the clock of the job's first node.
        answered: The time after it, by the same clock.
        printed: The lines on stdout that are not the task's.
        error: The last lines on stderr.
    """

    node: str
    facts: NodeFacts | None = None
    asked: float = 0.0
    answered: float = 0.0
    printed: str = ""
    error: str = ""


class NodesFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that the job has found.

    Attributes:
        answers: One for each node.
        pmix_ranks: How many ranks had PMIx's variables in a step of `srun --mpi=pmix`.
        pmix_wanted: How many ranks that step had; 0 if it was not tried.
        pmix_error: The last lines of that step on stderr.
        calls: How many of Slurm's programs the job has called.
    """

    answers: tuple[NodeAnswer, ...]
    pmix_ranks: int = 0
    pmix_wanted: int = 0
    pmix_error: str = ""
    calls: int = 0
