"""The same workload on real daemons: 4 nodes on this machine, whose trials sleep."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.calls import Traced, strace_to
from detslurm.store import Store
from tests.cluster import wait_for

CONFIG = """\
    name: site
    entrypoint: python3 train.py
    hyperparameters:
      x: {{type: int, minval: 0, maxval: {last}, count: {trials}}}
    searcher: {{name: grid, metric: loss, max_length: 1, max_concurrent_trials: {slots}}}
    slurm:
      slot_type: cpu
      setup: ["echo started $SLURM_ARRAY_TASK_ID $(date +%s.%N)"]
    """
TRAIN = """\
    import time
    print("line", time.time(), flush=True)
    import detslurm
    with detslurm.core.init() as core:
        time.sleep({seconds})
        core.train.report_validation_metrics(1, {{"loss": 0.5}})
    """
PATIENCE = 400.0
LOCAL = ('"/proc', '"/sys', '"/dev', '"/mark', ', "",')
"""Of calls that reach no file server; the last are looks at files that are open."""
_NODES_OWN = re.compile(r"/detslurm-\d+-")  # any user's files in a node's own directory
_RPC = re.compile(r"^\t(\w+) +\(\s*\d+\) count:(\d+) +ave_time:(\d+) +total_time:(\d+)", re.M)


@dataclass(frozen=True)
class Seen:
    """What a run of the workload showed.

    Attributes:
        makespan: Seconds from the end of `submit` to the last trial's end.
        first_line: Seconds from each job's start to its user's first line.
        rpc: How often the controller was asked, by the kind of question, and its seconds for it.
    """

    makespan: float
    first_line: list[float]
    rpc: dict[str, tuple[int, float]]

    @property
    def median_first_line(self) -> float:
        """Of the trials."""
        return statistics.median(self.first_line)

    @property
    def questions(self) -> int:
        """How often the controller was asked something, but by its nodes and by sdiag."""
        apart = ("MESSAGE_", "REQUEST_STATS")
        return sum(count for kind, (count, _) in self.rpc.items() if not kind.startswith(apart))


def run(bench: Bench, trials: int, slots: int, seconds: float) -> Seen:
    """Submit a grid of trials that sleep, and wait for its end without asking the controller."""
    user, cluster = bench.user, bench.cluster
    assert user.cwd is not None
    code = user.cwd / f"site-{time.monotonic_ns()}"
    code.mkdir()
    (code / "train.py").write_text(textwrap.dedent(TRAIN).format(seconds=seconds))
    config = code / "experiment.yaml"
    text = CONFIG.format(last=trials - 1, trials=trials, slots=slots)
    config.write_text(textwrap.dedent(text))
    user.own(code)
    cluster.command("sdiag", "--reset")
    said = user.run("detslurm", "submit", str(config), str(code), "--json").stdout
    began = time.time()
    store = Store(Path(user.env["DETSLURM_ROOT"]))
    experiment = store.experiment(json.loads(said)["data"]["experiment_id"])
    folder = experiment.path
    wait_for(lambda: len(list(folder.glob("trials/*/*/*.end.json"))) == trials, PATIENCE, "trials")
    rpc = controller(cluster.command("sdiag"))
    wait_for(lambda: not cluster.queued(user.name), PATIENCE, "the queue to be empty")
    first = experiment.created().first_trial
    ends = [end.time for n in range(trials) if (end := experiment.trial(first + n).end(1))]
    return Seen(max(filter(None, ends)) - began, _first_lines(folder, first, trials), rpc)


def _first_lines(folder: Path, first: int, trials: int) -> list[float]:
    (output,) = folder.glob("jobs/slurm-*.out")
    started = {
        int(n): float(t) for n, t in re.findall(r"^started (\d+) (\S+)", output.read_text(), re.M)
    }
    logs = {int(path.parent.name): path.read_text() for path in folder.glob("trials/*/*/run-1.log")}
    lines = {n: float(re.search(r"line (\d+\.\d+)", text)[1]) for n, text in logs.items()}  # type: ignore[index]
    return [lines[first + n] - started[n] for n in range(trials)]


def controller(sdiag: str) -> dict[str, tuple[int, float]]:
    """What sdiag counts: how often each question was asked, and the seconds that it took."""
    by_kind = sdiag.partition("Remote Procedure Call statistics by message type")[2]
    by_kind = by_kind.partition("Remote Procedure Call statistics by user")[0]
    return {kind: (int(n), int(total) / 1e6) for kind, n, _, total in _RPC.findall(by_kind)}


@contextmanager
def watched(bench: Bench, log: Path) -> Iterator[None]:
    """Let strace write down the path calls of all that the nodes start."""
    names = bench.cluster.spec.node_names()
    pids = [str(bench.cluster.daemons.pid(f"slurmd.{name}")) for name in names]
    tracer = subprocess.Popen([*strace_to(log), *(f"--attach={pid}" for pid in pids)])
    wait_for(lambda: all(_traced(pid) for pid in pids), 30, "strace")
    try:
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def _traced(pid: str) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


def path_calls(log: Path, shared: Path) -> int:
    """Path calls of Python's processes that may reach a file server, as strace wrote them."""
    python: dict[int, bool] = {}
    count = 0
    for thread, line in Traced(log.read_text(errors="replace").splitlines()).calls:
        if "execve(" in line:
            python[thread] = "/python" in line.partition(",")[0]
        ours = python.get(thread, f"{shared}" in line)
        local = any(word in line for word in (*LOCAL, "/tmp.")) or _NODES_OWN.search(line)
        count += ours and not local
    return count


def neighbours(seconds: float = 1.0) -> float:
    """How many processes of others compute on this machine, as some that compute find out."""
    code = (
        f"import time\nend = time.monotonic() + {seconds}\n"
        "while time.monotonic() < end: pass\nprint(time.process_time())"
    )
    argv = [sys.executable, "-c", code]
    cores = os.cpu_count() or 1
    found = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(cores)]
    share = sum(float(one.communicate()[0]) for one in found) / seconds / cores
    return max(cores / share - cores, 0.0)
