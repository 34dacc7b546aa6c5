"""A submission that records what it runs, beside the same submission without the record."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.calls import available, strace_to
from benchmarks.measure import interleaved, timed
from benchmarks.report import Row

FILES = 2000
CONFIG = """\
name: recorded
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: 1}
slurm: {slot_type: cpu}
"""
WITH = """\
import sys
from detslurm import cli
from detslurm.sdk.submission import planning
sys.exit(cli.main(sys.argv[1:]))
"""
WITHOUT = WITH.replace("sys.exit", "planning.ProvenanceCollector = lambda source: None\nsys.exit")


def measure(bench: Bench) -> Iterator[Row]:
    """The delay that a user sees, and the calls in the store."""
    project = Project(bench)
    recorded, bare = interleaved(
        lambda: project.submit(WITH), lambda: project.submit(WITHOUT), rounds=9
    )
    what = f"submit from a repository of {FILES:,} files"
    yield Row(
        what=what, ours=1e3 * recorded, unit="ms", anchor=1e3 * bare, peer="without the record"
    )
    yield Row(what=what, ours=1e3 * (recorded - bare), unit="ms for the record", most=50)
    if available():
        calls = project.calls_in_store(WITH) - project.calls_in_store(WITHOUT)
        yield Row(what=what, ours=calls, unit="path calls for the record, in the store", most=20)


class Project:
    """A repository with an uncommitted line, and the directory of an experiment in it."""

    def __init__(self, bench: Bench) -> None:
        self._cluster, self._user = bench.cluster, bench.user
        assert self._user.cwd is not None
        self._folder = self._user.cwd
        repository = self._folder / "repository"
        code = repository / "experiments" / "first"
        for number in range(FILES):
            path = repository / "library" / f"part{number % 50}" / f"module{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"x = {number}\n" * 50)
        code.mkdir(parents=True)
        self._config = code / "experiment.yaml"
        self._config.write_text(CONFIG)
        (code / "train.py").write_text("lr = 0.1\n")
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-q", "-m", "first")):
            subprocess.run(["git", *words], cwd=repository, check=True)
        (code / "train.py").write_text("lr = 0.2\n")
        self._user.own(self._folder)

    def _argv(self, program: str) -> list[str]:
        return [sys.executable, "-c", program, "submit", str(self._config), "--paused"]

    def submit(self, program: str) -> float:
        """Seconds of a submission."""
        seconds = timed(lambda: self._user.run(*self._argv(program)))
        self._cluster.cancel_all(self._user.name)
        return seconds

    def calls_in_store(self, program: str) -> int:
        """How often a submission names a path in the store."""
        log, store = self._folder / "strace", Path(self._user.env["DETSLURM_ROOT"])
        self._user.run(*strace_to(log), *self._argv(program))
        self._cluster.cancel_all(self._user.name)
        return sum(str(store) in line for line in log.read_text().splitlines())
