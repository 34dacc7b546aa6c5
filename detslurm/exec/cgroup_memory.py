"""Read the kernel's counters of this process's memory cgroup."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def oom_kills(cgroups: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> int:
    """Return how many processes were killed here for lack of memory; 0 where that is unknown.

    The job's cgroup counts the processes of all its steps. So the process's own is read, which
    also counts those below it.

    Args:
        cgroups: The file that names the cgroups of a process.
        root: Where the kernel shows them.
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
