"""Pass the request to leave on as a signal, to the processes that train.

Scripts that know nothing of detslurm save at a signal. The processes between them and the agent
must not get it: launchers end their workers at SIGTERM, and mpirun sends USR1 to its ranks a second
time. A process without a handler would die of it, so that it gets none either.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detslurm._base.child_processes import catching, in_cgroup_of_step, signal_each
from detslurm._base.launcher_names import is_launcher, is_python
from detslurm._base.quantities import counted
from detslurm.exec.entrypoint import OUTLIVE

_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "mksh", "zsh"})
# Python has a handler of SIGINT by itself, torch's loaders have a handler of SIGTERM in C.
_CAUGHT_BY_WORKERS = frozenset({signal.SIGINT, signal.SIGTERM})
# Code that has no handler after so many seconds probably has none: imports take about as long.
_PATIENCE = 15.0


class CodeProcess(NamedTuple):
    """A process of the run. `image` is equal to the parent's after a fork without an exec."""

    parent: int
    argv: tuple[str, ...]
    is_python: bool
    catches: bool
    image: bytes


def recipients(found: Mapping[int, CodeProcess], sig: signal.Signals) -> list[int]:
    """The processes that should get the signal: those with a handler that train.

    Of Python's all but launchers, forks of a process that gets it (workers of a data loader), and
    for SIGINT and SIGTERM processes of `multiprocessing` below such a process. Other programs count
    where no Python takes it: a shell with a trap, or a program that starts no Python.
    """
    takers = {
        pid
        for pid, one in found.items()
        if one.catches and not _is_between(one.argv) and not _is_fork(one, found)
    }
    python = {pid for pid in takers if found[pid].is_python}
    if python:
        return sorted(pid for pid in python if not _is_worker(pid, found, python, sig))
    above = {parent for pid, one in found.items() if one.is_python for parent in _above(pid, found)}
    return sorted(
        pid
        for pid in takers
        if not any(found[parent].is_python or parent in takers for parent in _above(pid, found))
        and (pid not in above or (_is_shell(found[pid]) and sig is not signal.SIGINT))
    )


def _is_between(argv: Sequence[str]) -> bool:
    """Whether it is a launcher, or the shell that the agent starts for a text entrypoint."""
    return is_launcher(argv) or (len(argv) > 2 and argv[2].startswith(OUTLIVE))


def _is_fork(one: CodeProcess, found: Mapping[int, CodeProcess]) -> bool:
    parent = found.get(one.parent)
    return parent is not None and parent.catches and parent.image == one.image != b""


def _is_worker(
    pid: int, found: Mapping[int, CodeProcess], takers: set[int], sig: signal.Signals
) -> bool:
    """Whether it works for another process that gets the signal, without a handler of the code."""
    is_started = any("multiprocessing" in word for word in found[pid].argv[1:])
    is_below = is_started and not takers.isdisjoint(_above(pid, found))
    return is_below and sig in _CAUGHT_BY_WORKERS


def _is_shell(one: CodeProcess) -> bool:
    return Path(one.argv[0]).name in _SHELLS


def _above(pid: int, found: Mapping[int, CodeProcess]) -> Iterator[int]:
    """The parent, its parent, and so on, as far as they are the run's."""
    while (one := found.get(pid)) is not None and one.parent in found:
        pid = one.parent
        yield pid


_AT_START = Path(__file__).with_name("onpath")


def unblocking(env: Mapping[str, str]) -> dict[str, str]:
    """The environment in which each Python unblocks SIGTERM at its start."""
    path = [str(_AT_START), *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(path)}


class PreemptSignal:
    """Sends the signal once to each process that should get it, from the request on."""

    def __init__(
        self, sig: signal.Signals, parents: Callable[[], Mapping[int, int]], *, in_container: bool
    ) -> None:
        """`parents` returns the parent of each process of the run on this node."""
        self.signal = sig
        self._parents = parents
        self._in_cgroup = in_cgroup_of_step()
        self.is_reached = False
        """Whether a process of the code has got it: its exit is then the answer."""
        self._sent: set[int] = set()
        self._give_up_at: float | None = None
        self.guarded = not (in_container or self._in_cgroup or sig is signal.SIGTERM)
        """Whether the code has to be shielded from the SIGTERM that Slurm sends to the step."""

    @classmethod
    def configured(
        cls, config: Mapping[str, Any], parents: Callable[[], Mapping[int, int]]
    ) -> PreemptSignal | None:
        """The signal that the experiment asks for."""
        name = config.get("preempt_signal")
        if name is None:
            return None
        in_container = bool((config.get("slurm") or {}).get("container_prefix"))
        return cls(signal.Signals[name], parents, in_container=in_container)

    def on_signal_of_slurm(self) -> None:
        """Slurm has sent this very signal to the step: without cgroups to all processes of it."""
        self.is_reached |= not self._in_cgroup

    def deliver(self) -> str | None:
        """Send it to processes that have had none, and return a message about that, if any.

        It is repeated until the code has left: ranks install their handlers at different moments.
        """
        if self._came_to_all:
            return None
        new = [pid for pid in recipients(self._read(), self.signal) if pid not in self._sent]
        now = time.monotonic()
        self._give_up_at = self._give_up_at or now + _PATIENCE
        if new:
            signal_each(new, self.signal)
            self._sent.update(new)
            self.is_reached = True
            return f"sent {self.signal.name} to {counted(len(new), 'process', 'processes')}"
        if not self._sent and now >= self._give_up_at:
            self._give_up_at = float("inf")
            return (
                f"no process of the code has a handler for {self.signal.name}, without which the"
                " signal would only end it: none is sent, and the code runs on until"
                " preemption_timeout"
            )
        return None

    @property
    def _came_to_all(self) -> bool:
        return self.is_reached and not self._sent

    def _read(self) -> dict[int, CodeProcess]:
        parents = self._parents()
        caught = set(catching(parents, self.signal))
        return {pid: _read(pid, parent, pid in caught) for pid, parent in parents.items()}


def _read(pid: int, parent: int, catches: bool) -> CodeProcess:
    words = _file(pid, "cmdline").rstrip(b"\0").split(b"\0")
    try:
        program = str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        program = os.fsdecode(words[0])
    argv = tuple(os.fsdecode(word) for word in words if word)
    # Where the kernel has put program and stack: random, and set anew by each exec.
    return CodeProcess(parent, argv, is_python(program), catches, _file(pid, "auxv"))


def _file(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has ended since
