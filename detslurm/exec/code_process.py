"""The user's code on one node: the entrypoint, its output, and every process that it leaves."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detslurm._base import child_processes as processes
from detslurm._base.flag import PreemptFlag
from detslurm._base.process import exit_status
from detslurm._base.quantities import counted
from detslurm.exec.agent_loop import FileEvent
from detslurm.exec.line_splitter import LineSplitter
from detslurm.exec.runner_link import RunnerLink

if TYPE_CHECKING:
    from detslurm.exec.warm_start import WarmChild

# Seconds between SIGTERM and SIGKILL for processes that outlive the entrypoint.
_REMAINING_GRACE = 5.0
# The same where the entrypoint has left as it was asked to: what remains may be saving.
_LEAVING_GRACE = 60.0
# So long after SIGKILL a process is waited for that is stuck in the kernel.
_KILL_TIMEOUT = 30.0

_CGROUPS = Path("/sys/fs/cgroup")


class CodeProcess:
    """The entrypoint and the processes below it; `wait` lets the agent's loop run meanwhile."""

    def __init__(self, link: RunnerLink, flag: PreemptFlag, wait: Callable[[float], None]) -> None:
        self.killed = False
        self.failure = 0  # of a worker, before the order to kill reached this node
        self._link, self._flag, self._wait = link, flag, wait
        self.spared: list[int] = []  # processes below this one that outlive the code
        self.has_left = False  # a process that can't be killed
        self._child: subprocess.Popen[bytes] | WarmChild | None = None
        self._output: LineSplitter | None = None

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        workdir: Path,
        blocked: Collection[signal.Signals] = (),
    ) -> None:
        """Start the entrypoint, with signals blocked. Raises `OSError` or `ValueError`."""
        # Before the first child: orphans that were adopted by init before this call stay there.
        processes.become_subreaper()
        self.take(processes.start([*argv], dict(env), workdir, blocked))

    def take(self, child: subprocess.Popen[bytes] | WarmChild) -> None:
        """See to an entrypoint that was just started."""
        self._child = child
        assert self._child.stdout is not None
        # The end of the pipe is not the end of the child: a process of the code may keep it open
        # for long, and reading it must not block signals and commands.
        os.set_blocking(self._child.stdout.fileno(), False)
        self._output = LineSplitter()

    @property
    def has_begun(self) -> bool:
        return self._child is not None

    @property
    def is_running(self) -> bool:
        """Whether the entrypoint has not exited yet."""
        return self._child is not None and self._child.poll() is None

    def exit_status(self) -> int:
        """The status of the entrypoint, which has exited."""
        assert self._child is not None and self._child.returncode is not None
        return exit_status(self._child.returncode)

    # -- its output ------------------------------------------------------------------------------

    def events(self) -> Iterator[FileEvent]:
        """The files to wait for at this moment."""
        if self._output is None:
            return
        self._link.log_output(self._output.overdue())
        # Back pressure: with too much waiting for the runner or a matcher, the code's output is not
        # read. Its pipe fills and the code blocks, instead of this process growing without bound.
        if not self._link.is_full:
            assert self._child is not None and self._child.stdout is not None
            yield self._child.stdout.fileno(), selectors.EVENT_READ, self._read_output

    def _read_output(self) -> bool:
        """Pass on what the code printed; False when there is nothing more to read for now."""
        assert self._child is not None and self._child.stdout is not None
        if self._output is None:
            return False
        try:
            chunk = os.read(self._child.stdout.fileno(), 65536)
        except BlockingIOError:
            return False
        self._link.log_output(self._output.feed(chunk) if chunk else self._output.close())
        if not chunk:
            self._output = None
        return bool(chunk)

    def read_rest(self) -> None:
        """Pass on the rest of the pipe, after all writers have ended, and close it."""
        while self._output is not None and self._read_output():
            pass
        if self._output is not None:  # a process that is not our descendant keeps it open
            self._link.log_output(self._output.close())
            self._output = None
        assert self._child is not None and self._child.stdout is not None
        self._child.stdout.close()  # this process may serve a thousand runs

    # -- its end ---------------------------------------------------------------------------------

    def terminate(self) -> None:
        """Send it SIGTERM, as Slurm does at a preemption."""
        self._signal_all(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all of it at once, by the runner's order."""
        self.failure, self.killed = self._flag.failure, True
        self._signal_all(signal.SIGKILL)

    def kill_starter(self) -> None:
        """Kill what waits for a container whose code has ended; no run was ended by that."""
        self._signal_all(signal.SIGKILL)

    def end_remaining(self) -> None:
        """End what the entrypoint left behind; while preempted, let it finish saving first."""
        # A launcher may exit at the SIGTERM that its workers survive. They are saving now, and the
        # runner ends them when the preemption timeout is over. After an orderly end it is rather
        # something in the background, such as a tunnel, that would hold the slots for so long.
        assert self._child is not None
        if not self._may_have_left():
            return
        until = time.monotonic() + _LEAVING_GRACE
        while self._is_saving() and self._others():
            if self._child.returncode == 0 and time.monotonic() >= until:
                left, seconds = _processes(self._others()), f"{_LEAVING_GRACE:.0f} s"
                self._link.log_message(
                    f"ending {left} still there {seconds} after the code has left"
                )
                break
            self._wait(0.2)
        self._signal_all(signal.SIGTERM)
        kill_at = time.monotonic() + (0.0 if self.killed else _REMAINING_GRACE)
        # A process may fork between the scan of /proc and the signal: so the scan is repeated until
        # none is found. Waiting reads their output, too: a process blocked by a full pipe can't
        # react to SIGTERM.
        while left_over := self._others():
            self._wait(0.1)
            if time.monotonic() >= kill_at:
                self._signal_all(signal.SIGKILL)
            if time.monotonic() >= kill_at + _KILL_TIMEOUT:
                self.has_left = True
                self._link.log_message(
                    f"{_processes(left_over)} left that did not end when"
                    " killed: waiting for a file server or a device, with what the next run needs"
                )
                return

    def _is_saving(self) -> bool:
        # The runner's order to kill comes once. A process that was forked in the middle of that
        # kill is alive still, and no agent would end it: don't wait for it as if it saved.
        return self._flag.preempt and not self.killed and self._output is not None

    def _signal_all(self, sig: signal.Signals) -> None:
        # Not the process group or session alone: launchers give each worker its own.
        processes.signal_each(self._others(), sig)

    def _others(self) -> list[int]:
        """The processes below this one that are the code's."""
        own = {*self._link.own_processes, *self.spared}
        return [pid for pid in processes.descendants(os.getpid()) if pid not in own]

    def _may_have_left(self) -> bool:
        """Whether something may be left of code that was waited for: a quick look."""
        return processes.has_child_beside([*self._link.own_processes, *self.spared])


def _processes(pids: Sequence[int]) -> str:
    return counted(len(pids), "process", "processes")


def oom_kills(cgroups: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> int:
    """Return how many processes the kernel killed here for lack of memory; 0 where it is unknown.

    `cgroups` names the cgroups of a process, and `root` shows them. The job's cgroup counts the
    processes of all its steps. So the process's own is read, which also counts those below it.
    """
    try:
        lines = cgroups.read_text().splitlines()
    except OSError:
        return 0
    fields = [line.split(":", 2) for line in lines if line.count(":") > 1]
    return sum(_killed(controllers, path, root) for _, controllers, path in fields)


def _killed(controllers: str, path: str, root: Path) -> int:
    if controllers and "memory" not in controllers.split(","):
        return 0
    file = root / "memory" / path[1:] / "memory.oom_control"
    if not controllers:
        file = root / path[1:] / "memory.events"
    try:
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    except (OSError, ValueError):
        return 0  # the kernel shows another part of it, or does not count them
