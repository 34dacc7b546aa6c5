"""The processes of a job, seen from outside, on all nodes of the suite's cluster."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.processes import birth
from tests.cluster.waiting import wait_for
from tests.e2e.desk import PATIENCE, Desk


def find_process(words: str) -> int:
    """The oldest process whose command line has these words."""
    return _oldest(wait_for(lambda: find_processes(words), PATIENCE, f"a process {words!r}"))


def find_processes(words: str) -> list[int]:
    """All processes whose command line has these words."""
    return [pid for pid, line in _all("cmdline") if words.encode() in line.replace(b"\0", b" ")]


def find_program(desk: Desk, pattern: str) -> int:
    """The oldest process of this user's jobs whose whole command line matches."""
    whole, store = re.compile(pattern.encode()), f"={desk.store.path}\0".encode()

    def search() -> list[int]:
        ours = {pid for pid, text in _all("environ") if store in text}
        lines = ((pid, line) for pid, line in _all("cmdline") if pid in ours)
        return [pid for pid, line in lines if whole.match(line.replace(b"\0", b" "))]

    return _oldest(wait_for(search, PATIENCE, f"a process {pattern!r}"))


def _oldest(pids: list[int]) -> int:
    """A child has its parent's command line until it runs its own program; pids wrap around."""
    return min(pids, key=lambda pid: (float(birth(pid) or "inf"), pid))


def processes_of(desk: Desk, number: int) -> set[int]:
    """Every living process that an experiment's jobs have started, whatever became of it."""
    path = f"{desk.experiment(number).path}\0".encode()
    return {
        pid for what in ("cmdline", "environ") for pid, text in _all(what) if path in text + b"\0"
    }


def kill_runner(desk: Desk, number: int) -> None:
    """kill -9 of the runner; all processes of its job must be gone soon."""
    os.kill(find_process(f"detslurm.exec.runner {desk.experiment(number).path} "), signal.SIGKILL)
    wait_for(lambda: not processes_of(desk, number), PATIENCE, "no process of the job's to remain")


def pids_of_ranks(desk: Desk, number: int, run: int) -> dict[int, int]:
    """Rank -> process id in a run, once all four have said theirs."""

    def said() -> dict[int, int]:
        path = desk.trial_dir(number).log_path(run)
        lines = path.read_text().splitlines() if path.exists() else []
        words = [line.split() for line in lines if "|| pid " in line]
        found = {int(w[-1]): int(w[w.index("pid") + 1]) for w in words}
        return found if len(found) == 4 else {}

    return wait_for(said, PATIENCE, f"four ranks of run {run}")


def programs_above(pid: int) -> dict[str, int]:
    """What stands between Slurm and a worker: the process ids of torchrun and the agent."""
    found: dict[str, int] = {}
    while "agent" not in found:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        names = {"torchrun": b"torch.distributed.run", "agent": b"detslurm.exec.agent"}
        found |= {name: pid for name, module in names.items() if b"\0" + module + b"\0" in line}
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def _all(what: str) -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / what).read_bytes()
            except OSError:
                continue
