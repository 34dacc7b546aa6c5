"""A submission that records what it runs, beside the same submission without the record."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.calls import Traced, available, strace_to
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
# The rest of the record is collected while sbatch checks the job.
TIMED = """\
import sys, time
from detslurm import cli
from detslurm.sdk.provenance.collecting import ProvenanceCollector
waited = []
def timed(act):
    def measured(*args):
        began = time.perf_counter()
        try:
            return act(*args)
        finally:
            waited.append(time.perf_counter() - began)
    return measured
for name in ("__init__", "kept"):
    setattr(ProvenanceCollector, name, timed(getattr(ProvenanceCollector, name)))
status = cli.main(sys.argv[1:])
print("waited", sum(waited), file=sys.stderr)
sys.exit(status)
"""


def measure(bench: Bench) -> Iterator[Row]:
    """The delay that a user sees, and the calls in the store."""
    project = Project(bench)
    recorded, bare, waits = interleaved(
        lambda: project.submit(WITH), lambda: project.submit(WITHOUT), project.waits, rounds=7
    )
    what = f"submit from a repository of {FILES:,} files"
    yield Row(
        what=what, ours=1e3 * recorded, unit="ms", anchor=1e3 * bare, peer="without the record"
    )
    yield Row(what=what, ours=1e3 * waits, unit="ms of it wait for the record", most=50)
    if available():
        calls = project.calls_for_record()
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

    def waits(self) -> float:
        """Seconds of a submission in which nothing but the record is worked on."""
        said = self._user.run(*self._argv(TIMED)).stderr
        self._cluster.cancel_all(self._user.name)
        return float(said.splitlines()[-1].removeprefix("waited "))

    def calls_for_record(self) -> int:
        """How often a submission names the records in the store."""
        log, store = self._folder / "strace", Path(self._user.env["DETSLURM_ROOT"])
        self._user.run(*strace_to(log), *self._argv(WITH))
        self._cluster.cancel_all(self._user.name)
        return len(Traced(log.read_text().splitlines()).under(store / "provenance"))
