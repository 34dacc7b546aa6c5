"""Decide whether a notebook is in use, from two looks at its Jupyter server."""

from __future__ import annotations

from typing import Final, NamedTuple, assert_never

from detslurm._base.idle_types import IdleType

# Jupyter calls a kernel "starting" until its first client connects. A state that is not known
# counts as work: unknown never ends a notebook.
_AT_REST: Final = frozenset({"idle", "starting", "dead"})


class Kernel(NamedTuple):
    """A kernel, as Jupyter lists it: it is "busy" while a cell runs, and each page that shows its
    notebook is a connection."""

    id: str
    state: str
    connections: int
    last_activity: str

    @property
    def is_busy(self) -> bool:
        """Whether it runs a cell, or is in a state that is not known."""
        return self.state not in _AT_REST


class ServerUse(NamedTuple):
    """A look at a Jupyter server: its kernels, the name and the last activity of each terminal, and
    the time of the last request of a page."""

    kernels: tuple[Kernel, ...]
    terminals: tuple[tuple[str, str], ...]
    last_request: str

    @property
    def busy(self) -> list[Kernel]:
        """The kernels that run a cell."""
        return [kernel for kernel in self.kernels if kernel.is_busy]

    @property
    def connections(self) -> int:
        """The number of open connections to kernels."""
        return sum(kernel.connections for kernel in self.kernels)

    def activity(self) -> list[tuple[str, str]]:
        """Return a value that each message of a kernel and each output of a terminal changes."""
        return [*((one.id, one.last_activity) for one in self.kernels), *self.terminals]


def is_in_use(kind: IdleType, now: ServerUse, before: ServerUse) -> bool:
    """Whether the server was in use between two looks. A running cell always counts.

    These count, too: for "kernel_connections" a page that is open on a notebook, or has sent a
    request, and the output of a terminal; for "activity" messages of kernels and output of
    terminals; for "kernels_or_terminals" any of these that exists.
    """
    if now.busy:
        return True
    match kind:
        case "kernel_connections":
            asked = now.last_request != before.last_request
            return bool(now.connections) or asked or now.activity() != before.activity()
        case "activity":
            return now.activity() != before.activity()
        case "kernels_or_terminals":
            return bool(now.kernels or now.terminals)
        case _:
            assert_never(kind)


def idle_reason(kind: IdleType) -> str:
    """Return what there was not while the notebook was idle, for the log."""
    match kind:
        case "kernel_connections":
            return "no cell ran and no page was connected"
        case "activity":
            return "no cell ran and no terminal was used"
        case "kernels_or_terminals":
            return "there was no kernel and no terminal"
        case _:
            assert_never(kind)
