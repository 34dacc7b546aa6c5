"""Run searches that are asked for: a line of JSON in, a line out.

Started by `session.py`, once with detslurm's Python and once with that of the other projects.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from benchmarks.quality import virtual
from benchmarks.quality.peers import PEERS
from benchmarks.quality.problem import Problem, Report, regrets
from benchmarks.quality.problems import problem_of
from benchmarks.quality.task import MOMENTS, Task

Play = Callable[[Problem, Task], Iterator[Report]]


def play_peer(problem: Problem, task: Task) -> Iterator[Report]:
    """A search by another project's method."""
    method = PEERS[task.method](problem, task.seed)
    return virtual.reports(method, problem, task.workers, task.seed)


def play_ours(problem: Problem, task: Task) -> Iterator[Report]:
    """A search by a method of detslurm."""
    from benchmarks.quality import contenders

    return contenders.reports(task.method, problem, task.workers, task.seed)


def main() -> int:
    """Answer until the input ends."""
    tables, play = Path(sys.argv[1]), play_peer if sys.argv[2] == "peers" else play_ours
    made = cache(lambda name: problem_of(name, tables))
    for line in sys.stdin:
        task = Task(**json.loads(line))
        problem: Problem = made(task.problem)
        end = task.budget * problem.full_seconds / task.workers
        began = time.process_time()
        found = regrets(problem, play(problem, task), [share * end for share in MOMENTS])
        answer = {"regrets": found, "cpu": time.process_time() - began}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
