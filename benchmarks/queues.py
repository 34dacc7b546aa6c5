"""A queue of any length, as squeue prints it, without the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from detslurm.slurm.queue_listing import FIELDS

# It prints the rows with the separator that it was asked for.
_SQUEUE = """\
#!/bin/sh
for word; do case $word in --Format=*) format=$word;; esac; done
separator=${format#*:0}
exec sed "s/@/${separator%%,*}/g" "$(dirname "$0")/queue.txt"
"""


def slurm_commands(folder: Path, jobs: int, store: Path) -> Path:
    """A directory with a squeue that prints `jobs` rows, and an sbatch that is there.

    One job in ten runs; half of them work for experiments of the store.
    """
    commands = folder / "bin"
    commands.mkdir()
    (commands / "queue.txt").write_text("".join(_row(number, store) for number in range(jobs)))
    for name, text in (("squeue", _SQUEUE), ("sbatch", "#!/bin/sh\nexit 1\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (folder / "slurm.conf").touch()
    return commands


def _row(number: int, store: Path) -> str:
    runs = number % 10 == 0
    known = {
        "ArrayJobID": str(4711 + number),
        "ArrayTaskID": "0-9%2" if number % 3 == 0 and not runs else "N/A",
        "State": "RUNNING" if runs else "PENDING",
        "Reason": "None" if runs else "Priority",
        "Partition": "main",
        "PriorityLong": str(10_000 + number % 97),
        "Nice": "41",
        "UserName": f"user{number % 7}",
        "SubmitTime": "1700000000",
        "StartTime": "1700000100" if runs else "N/A",
        "TimeLimit": "1-00:00:00",
        "NodeList": "n[1-2]" if runs else "",
        "NumNodes": "2",
        "NumCPUs": "8",
        "tres-alloc": "cpu=8,mem=64G,node=2,billing=8,gres/gpu=8",
        "WorkDir": f"{store}/experiments/{number}/jobs" if number % 2 else "/home/bob",
        "Name": f"job-{number}",
    }
    return written(known)


def written(known: Mapping[str, str]) -> str:
    """A row of that squeue with these of its fields."""
    return "".join(f"{known.get(name, '(null)')}@" for name in FIELDS) + "\n"
