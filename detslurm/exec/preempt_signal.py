"""Pass the request to leave on as a signal, to the processes that train.

Scripts that know nothing of detslurm save at a signal. The processes between them and the agent
must not get it: launchers end their workers at SIGTERM, and mpirun sends USR1 to its ranks a second
time. A process without a handler would die of it, so that it gets none either.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from detslurm._base.child_processes import catching, in_cgroup_of_step, signal_each
from detslurm._base.flag import PreemptFlag
from detslurm._base.launcher_names import is_launcher, is_python
from detslurm._base.quantities import counted
from detslurm.exec.agent_loop import FileEvent
from detslurm.exec.entrypoint import OUTLIVE
from detslurm.exec.node_run import NodeRun
from detslurm.exec.run_processes import RunProcesses
from detslurm.exec.runner_link import RunnerLink
from detslurm.exec.start_hooks import with_start_hook

_SHELLS = frozenset({"sh", "bash", "dash", "ksh", "mksh", "zsh"})
# Python has a handler of SIGINT by itself, torch's loaders have a handler of SIGTERM in C.
_CAUGHT_BY_WORKERS = frozenset({signal.SIGINT, signal.SIGTERM})
# Code that has no handler after so many seconds probably has none: imports take about as long.
_PATIENCE = 15.0
_LOOK = 0.4


class ProcessFacts(NamedTuple):
    """A process of the run. `image` is equal to the parent's after a fork without an exec."""

    parent: int
    argv: tuple[str, ...]
    is_python: bool
    catches: bool
    image: bytes


def recipients(found: Mapping[int, ProcessFacts], sig: signal.Signals) -> list[int]:
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


def _is_fork(one: ProcessFacts, found: Mapping[int, ProcessFacts]) -> bool:
    parent = found.get(one.parent)
    return parent is not None and parent.catches and parent.image == one.image != b""


def _is_worker(
    pid: int, found: Mapping[int, ProcessFacts], takers: set[int], sig: signal.Signals
) -> bool:
    """Whether it works for another process that gets the signal, without a handler of the code."""
    is_started = any("multiprocessing" in word for word in found[pid].argv[1:])
    is_below = is_started and not takers.isdisjoint(_above(pid, found))
    return is_below and sig in _CAUGHT_BY_WORKERS


def _is_shell(one: ProcessFacts) -> bool:
    return Path(one.argv[0]).name in _SHELLS


def _above(pid: int, found: Mapping[int, ProcessFacts]) -> Iterator[int]:
    """The parent, its parent, and so on, as far as they are the run's."""
    while (one := found.get(pid)) is not None and one.parent in found:
        pid = one.parent
        yield pid


class PreemptSignal:
    """Sends the signal once to each process that should get it, from the request to leave on."""

    def __init__(
        self,
        sig: signal.Signals,
        parents: Callable[[], Mapping[int, int]],
        link: RunnerLink,
        flag: PreemptFlag,
        *,
        in_container: bool,
    ) -> None:
        """`parents` returns the parent of each process of the run on this node."""
        self._signal, self._parents, self._link, self._flag = sig, parents, link, flag
        self._in_cgroup = in_cgroup_of_step()
        self._shields = not (in_container or self._in_cgroup or sig is signal.SIGTERM)
        self._has_begun = self._came_to_all = False
        self._sent: set[int] = set()
        self._next_look = 0.0
        self._give_up_at: float | None = None

    @classmethod
    def configured(
        cls, name: str, node: NodeRun, link: RunnerLink, flag: PreemptFlag
    ) -> PreemptSignal:
        """The signal that the experiment asks for by its name."""
        sig = signal.Signals[name]
        parents = RunProcesses(node.mark).parents
        return cls(sig, parents, link, flag, in_container=node.is_contained)

    def begin(self, env: dict[str, str]) -> tuple[dict[str, str], list[signal.Signals]]:
        """Let the code begin: the environment for it, and the signals that it begins with blocked.

        Where Slurm's own SIGTERM comes to every process, it would end the code before this signal
        has reached it. It is blocked, and each Python unblocks it at its start.
        """
        self._has_begun = True
        if not self._shields:
            return env, []
        return with_start_hook(env, "sigterm"), [signal.SIGTERM]

    def came_from_slurm(self, came: Collection[signal.Signals]) -> bool:
        """Whether Slurm has sent this very signal; without cgroups all processes have it then."""
        if self._signal not in came:
            return False
        self._came_to_all |= not self._in_cgroup
        if self._came_to_all:
            self._flag.acknowledge()
        return True

    def events(self) -> Iterator[FileEvent]:
        """Send it where it is due: the loop asks before each wait. There is no file to wait for."""
        now = time.monotonic()
        if self._has_begun and self._flag.preempt and now >= self._next_look:
            self._next_look = now + _LOOK
            if not self._came_to_all:
                self._deliver(now)
        return iter(())

    def _deliver(self, now: float) -> None:
        """Send it to processes that have had none, until the code has left: ranks install their
        handlers at different moments."""
        new = [pid for pid in recipients(self._read(), self._signal) if pid not in self._sent]
        self._give_up_at = self._give_up_at or now + _PATIENCE
        if new:
            # The exit of these processes is the answer, whatever its status.
            self._flag.acknowledge()
            signal_each(new, self._signal)
            self._sent.update(new)
            count = counted(len(new), "process", "processes")
            self._link.log_message(f"sent {self._signal.name} to {count}")
        elif not self._sent and now >= self._give_up_at:
            self._give_up_at = float("inf")
            self._link.log_message(
                f"no process of the code has a handler for {self._signal.name}, and would only be"
                " ended by it: none is sent, and the code runs on until preemption_timeout"
            )

    def _read(self) -> dict[int, ProcessFacts]:
        own = {*self._link.own_processes}  # Python, with a handler of SIGINT
        parents = {pid: parent for pid, parent in self._parents().items() if pid not in own}
        caught = set(catching(parents, self._signal))
        return {pid: _read(pid, parent, pid in caught) for pid, parent in parents.items()}


def _read(pid: int, parent: int, catches: bool) -> ProcessFacts:
    words = _file(pid, "cmdline").rstrip(b"\0").split(b"\0")
    try:
        program = str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        program = os.fsdecode(words[0])
    argv = tuple(os.fsdecode(word) for word in words if word)
    # Where the kernel has put program and stack: random, and set anew by each exec.
    return ProcessFacts(parent, argv, is_python(program), catches, _file(pid, "auxv"))


def _file(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""  # it has ended since
