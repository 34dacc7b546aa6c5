"""Processes that the kernel has killed for lack of memory, as both kinds of cgroups count them."""

from __future__ import annotations

from pathlib import Path

import pytest

from detslurm.exec.code_process import oom_kills

TASK = "slurm/uid_7/job_9/step_0/task_0"


@pytest.mark.parametrize(
    ("listed", "name", "text"),
    [
        (f"0::/{TASK}\n", f"{TASK}/memory.events", "low 0\noom 3\noom_kill 2\n"),
        (
            f"5:cpuset:/x\n4:memory,hugetlb:/{TASK}\n0::/other\n",
            f"memory/{TASK}/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
    ],
)
def test_killed_processes_are_counted(tmp_path: Path, listed: str, name: str, text: str) -> None:
    """By the step's own cgroup, of version 2 or 1."""
    cgroups, events = tmp_path / "cgroup", tmp_path / name
    cgroups.write_text(listed)
    events.parent.mkdir(parents=True)
    events.write_text(text)
    assert oom_kills(cgroups, tmp_path) == 2


@pytest.mark.parametrize("text", ["", "low 0\n", "oom_kill many\n", "a b c\n"])
def test_what_is_not_counted_is_none(tmp_path: Path, text: str) -> None:
    """No file, another kernel's file, or nothing at all: 0."""
    cgroups = tmp_path / "cgroup"
    assert oom_kills(cgroups, tmp_path) == 0
    cgroups.write_text("0::/\nodd\n")
    assert oom_kills(cgroups, tmp_path) == 0
    (tmp_path / "memory.events").write_text(text)
    assert oom_kills(cgroups, tmp_path) == 0
