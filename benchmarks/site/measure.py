"""Measure what each step costs, and keep it: python -m benchmarks.site.measure.

Path calls are counted by strace, so they are the same on every machine with the same Python; the
controller's seconds are what a real slurmctld on this machine says of itself.
"""

from __future__ import annotations

import datetime
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.bench import Bench
from benchmarks.calls import Traced, trace
from benchmarks.experiments import Nowhere, finished, job_environment
from benchmarks.history import commit
from benchmarks.latency import counted
from benchmarks.measure import interleaved, run
from benchmarks.quiet import wait_until_quiet
from benchmarks.searches import LongSearch
from benchmarks.site.costs import KEPT, AtOnce, Calls, Controller, Costs, Seconds
from benchmarks.site.decisions import FileServer, crowd
from benchmarks.site.real import LOCAL, controller
from detslurm.exec.intents import Intents
from detslurm.jobs.resubmit import runner_command
from detslurm.look.top.watcher import Request, Watcher
from detslurm.sdk import Client
from detslurm.sdk.submission.submit import cache_modules
from detslurm.store import ExperimentDir, Store
from tests.cluster import wait_for

REPORTS, CHECKPOINTS, JOBS, HELD, RUNNING = 50, 4, 20, 500, 1000
BEHIND = (0, 1, 4, 16, 64, 256, 1024)
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

# The code looks at names of which there are no files: strace shows when.
TRAIN = f"""\
import os, time
def mark(name):
    os.path.exists("/mark/" + name)
mark("line")
import detslurm
with detslurm.core.init() as core:
    mark("ready")
    core.train.report_training_metrics(1, {{"loss": 0.5}})
    time.sleep(2.5)
    mark("begun")
    for step in range({REPORTS}):
        core.train.report_training_metrics(2 + step, {{"loss": 0.5}})
    time.sleep(2.5)
    mark("reported")
    for step in range({CHECKPOINTS}):
        with core.checkpoint.store_path({{"steps_completed": 100 + step}}) as (path, uuid):
            (path / "weights").write_bytes(b"1")
    mark("saved")
mark("closed")
"""
MARKS = ("line", "ready", "begun", "reported", "saved", "closed")

CONFIG = """\
name: site
entrypoint: {entrypoint}
hyperparameters: {{x: {{type: int, minval: 0, maxval: {last}, count: {trials}}}}}
searcher: {{name: grid, metric: loss, max_length: 1}}
slurm: {{slot_type: cpu}}
max_restarts: 0
"""


class JobStore:
    """A store for experiments that runners work for, as jobs of the local cluster."""

    def __init__(self, bench: Bench) -> None:
        self.folder, self._temporary = bench.folder(), bench.folder()
        self.store = self.folder / "store"
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        apart = {"TMPDIR": str(self._temporary), "PATH": path}
        self.environment = job_environment({**bench.environment(self.folder), **apart})

    def config(self, entrypoint: str, trials: int, script: str = "") -> Path:
        """The configuration of a grid, in a directory with its code."""
        context = Path(tempfile.mkdtemp(dir=self.folder))
        (context / "train.py").write_text(script)
        config = context / "experiment.yaml"
        config.write_text(CONFIG.format(entrypoint=entrypoint, trials=trials, last=trials - 1))
        return config

    def experiment(self, entrypoint: str, trials: int = 1, script: str = "") -> ExperimentDir:
        """A new one, whose jobs are queued nowhere."""
        client = Client(self.store, connect=lambda name: Nowhere(self.store))
        config = self.config(entrypoint, trials, script)
        experiment = client.store.experiment(client.submit(config).id)
        cache_modules(client.store)
        return experiment

    def traced(self, argv: Sequence[str]) -> Traced:
        """What a command does."""
        return trace(argv, self.environment)

    def names(self, line: str) -> bool:
        """Whether a call is one on experiments or their code."""
        return f"{self.folder}/" in line

    def sum(self, calls: Iterable[tuple[int, str]]) -> float:
        """How many of the calls may reach a file server."""
        apart = (*LOCAL, f"{self._temporary}/")
        return float(sum(not any(word in line for word in apart) for _, line in calls))


def phases(place: JobStore) -> dict[str, float]:
    """Path calls of the jobs of two trials, from one moment of the first to the next."""
    experiment = place.experiment("['python3', 'train.py']", 2, TRAIN)
    first, last = (runner_command(experiment.path, index) for index in (0, 1))
    calls = place.traced(first).calls
    runner = calls[0][0]
    at = next(n for n, (thread, line) in enumerate(calls) if thread != runner and "exec" in line)
    found = {"runner": place.sum(calls[:at])}
    for mark in MARKS:
        end = next(n for n, (_, line) in enumerate(calls) if f'"/mark/{mark}"' in line)
        if mark == "ready":
            found["opening"] = place.sum(call for call in calls[at:end] if place.names(call[1]))
        found[mark], at = place.sum(calls[at:end]), end
    found["closing"] = place.sum(calls[at:])
    calls = place.traced(last).calls
    at = next(n for n, (_, line) in enumerate(calls) if '"/mark/closed"' in line)
    found["last"] = place.sum(calls[at:])
    return found


def calls(bench: Bench, few: Look, many: Look) -> Calls:
    """All path calls; of looks at two trials and at so many more they are known."""
    place = JobStore(bench)
    phases(place)  # the module cache, compiled files
    found = phases(place)
    store = Store.open(place.store)
    experiment = store.experiment(1)
    trial = experiment.trial(experiment.created().first_trial)
    intents = Intents(experiment)
    intents.refresh()

    def minute() -> None:
        trial.superseded(1)
        intents.refresh()

    return Calls(
        submit=_submission(place),
        runner=found["runner"],
        agent=found["line"],
        imports=found["ready"],
        opening=found["opening"],
        first_report=found["begun"],
        report=found["reported"] / REPORTS,
        checkpoint=found["saved"] / CHECKPOINTS,
        closing=found["closed"] + found["closing"],
        compacting=found["last"] - found["closing"],
        compacting_trial=_compacting_trial(bench),
        minute=counted(minute).total(),
        listing=_listing(bench),
        look=few.calls,
        look_trial=(many.calls - few.calls) / RUNNING,
    )


def _submission(place: JobStore) -> float:
    """Of 1,000 trials; of sbatch itself none."""
    argv = ["detslurm", "submit", "--dry-run", str(place.config("'true'", 1000))]
    run(argv, place.environment)
    dry = place.sum(place.traced(argv).calls)
    config = place.config("'true'", 1000)
    client = Client(place.store, connect=lambda name: Nowhere(place.store))
    return dry + counted(lambda: client.submit(config)).total()


def _listing(bench: Bench) -> float:
    place = JobStore(bench)
    finished(Store.open(place.store), 60)
    argv = ["detslurm", "experiment", "list"]
    run(argv, place.environment)
    return place.sum(place.traced(argv).calls)


class Look(NamedTuple):
    """Path calls, and seconds of a core, of a look of `detslurm top`."""

    calls: float
    seconds: float


def look(bench: Bench, trials: int) -> Look:
    """One at trials that run."""
    place = JobStore(bench)
    experiment = place.experiment("'true'", trials)
    first = experiment.created().first_trial
    for number in range(first, first + trials):
        experiment.trial(number).open_run({"trial": number, "time": 1.0, "hparams": {}})
    watcher = Watcher(place.store, clock=lambda: 0.0)  # asks the queue once
    again = partial(watcher.poll, Request())
    for _ in range(3):
        again()
    seconds = []
    for _ in range(9):
        began = time.process_time()
        again()
        seconds.append(time.process_time() - began)
    return Look(float(counted(again).total()), statistics.median(seconds))


def _compacting_trial(bench: Bench) -> float:
    """What each trial adds to the end of its experiment."""
    from detslurm.store import compact
    from tests.sdk.scenes import Scene

    def total(trials: int) -> int:
        scene = Scene(bench.folder() / "store")
        experiment = scene.experiment(trials)
        first = experiment.created().first_trial
        for number in range(first, first + trials):
            trial = experiment.trial(number)
            trial.open_run({"trial": number, "time": 1.0, "hparams": {}})
            trial.write_end(1, {"outcome": "completed", "time": 2.0})
        return counted(lambda: compact(experiment)).total()

    return (total(40) - total(20)) / 20


def decisions(bench: Bench) -> list[tuple[int, float]]:
    """Path calls of a decision, by how many others have decided since the last."""
    found = []
    for behind in BEHIND:
        folder = bench.folder()
        others = LongSearch(folder, 50)
        mine = others.open()
        if behind:
            others.decide(behind)
        event = mine.state.request_event("2_1", "2_1")
        found.append((behind, float(counted(partial(mine.commit, [event])).total())))
    return found


def crowds() -> list[AtOnce]:
    """What decisions take that meet, in virtual time."""
    found = []
    for workers in WORKERS:
        server = FileServer(latency=0.001)
        seen = crowd(workers, decisions=1, server=server)
        mean = sum(seen.waits) / workers
        each = (seen.calls.total(), seen.facts)
        calls, facts = (round(total / workers, 4) for total in each)
        found.append(AtOnce(workers, calls, round(mean / server.latency, 2), facts))
    return found


def on_slurm(bench: Bench) -> tuple[Controller, float]:
    """What a real slurmctld says of the seconds that it was busy; and the seconds of a core that
    slurmd, slurmstepd and srun take for a job of one step."""
    cluster, user = bench.cluster, bench.user
    assert user.cwd is not None
    done = user.folder_in(user.cwd, "done")
    script = user.cwd / "step.sh"
    script.write_text(f"#!/bin/sh\nsrun true\ntouch {done}/$SLURM_ARRAY_TASK_ID\n")

    def asked(*argv: str, until: Callable[[], bool] = lambda: True) -> float:
        cluster.command("sdiag", "--reset")
        user.run(*argv)
        wait_for(until, 120, "the jobs' end")
        seen = controller(cluster.command("sdiag"))
        return sum(seconds for kind, (_, seconds) in seen.items() if "STATS" not in kind)

    def usual(*argv: str) -> float:
        return statistics.median(asked(*argv) for _ in range(5))

    sbatch = ["sbatch", "--output=/dev/null", str(script)]
    submission = usual(*sbatch[:2], "--hold", "--array=0-999", sbatch[2])
    cluster.cancel_all(user.name)
    before = _slurmd_seconds(bench)
    # One after the other: what waits for a lock counts as busy, too.
    array = [*sbatch[:2], f"--array=0-{JOBS - 1}%1", sbatch[2]]
    ended = asked(*array, until=lambda: len(list(done.iterdir())) == JOBS)
    wait_for(lambda: not cluster.queued(user.name), 60, "an empty queue")
    seconds = (_slurmd_seconds(bench) - before) / JOBS
    empty = usual("squeue", "--all")
    hold = f"{' '.join(sbatch[:2])} --hold {script}"
    user.run("sh", "-c", f"for n in $(seq {HELD}); do {hold}; done >/dev/null")
    held = usual("squeue", "--all")
    update = usual("scontrol", "hold", cluster.queued(user.name)[0].split()[0])
    cluster.cancel_all(user.name)
    return Controller(
        job=(ended - submission) / JOBS,
        queue=empty,
        queued_job=max(held - empty, 0.0) / HELD,
        submission=submission,
        update=update,
    ), seconds


def _slurmd_seconds(bench: Bench) -> float:
    """What the nodes' daemons, and the processes that they have waited for, have used."""
    daemons = bench.cluster.daemons
    pids = [daemons.pid(f"slurmd.{name}") for name in bench.cluster.spec.node_names()]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    ticks = sum(int(word) for stat in stats for word in stat[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


# Adds up what the processes have used that started this one.
SPENT = """\
import os
pid, spent = os.getpid(), 0.0
while pid == os.getpid() or b"detslurm.exec" in open(f"/proc/{pid}/cmdline", "rb").read():
    spent += int(open(f"/proc/{pid}/schedstat").read().split()[0]) / 1e9
    words = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    spent += sum(map(int, words[13:15])) / os.sysconf("SC_CLK_TCK")  # children that have ended
    pid = int(words[1])
print("spent", spent, flush=True)
"""
REPORTING = """\
import detslurm
with detslurm.core.init() as core:
    core.train.report_training_metrics(1, {"loss": 0.5})
"""


def python_seconds() -> float:
    """Of a core, for `python -c pass`, the median of some tries."""
    return statistics.median(_spent([sys.executable, "-c", "pass"]) for _ in range(15))


def _spent(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(argv, environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def processor(bench: Bench, slurm: float, few: Look, many: Look) -> Seconds:
    """Seconds of a core, the median of some tries."""
    store = JobStore(bench)

    def spent(script: str) -> float:
        experiment = store.experiment("['python3', 'train.py']", 2, script)
        return _spent(runner_command(experiment.path, 0), store.environment)

    def before_first_line() -> float:
        experiment = store.experiment("['python3', 'train.py']", 2, SPENT)
        run(runner_command(experiment.path, 0), store.environment)
        (log,) = experiment.path.glob("trials/*/*/run-1.log")
        return float(log.read_text().partition("spent ")[2].split()[0])

    bare, whole, first = (
        figure.median
        for figure in interleaved(
            lambda: spent(""), lambda: spent(REPORTING), before_first_line, rounds=5
        )
    )
    return Seconds(
        python=python_seconds(),
        start=first,
        imports=whole - bare,
        closing=bare - first,
        slurm=slurm,
        look_trial=(many.seconds - few.seconds) / RUNNING,
    )


def measured(bench: Bench) -> Costs:
    """Everything, in about two minutes; what takes time, when the machine is quiet."""
    slurm = bench.cluster.command("sinfo", "--version").split()[-1]
    wait_until_quiet()
    busy, seconds = on_slurm(bench)
    wait_until_quiet()
    few, many = look(bench, 2), look(bench, 2 + RUNNING)
    return Costs(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        version=commit(),
        machine=f"Python {platform.python_version()}, Slurm {slurm}, {os.cpu_count()} cores",
        calls=calls(bench, few, many),
        controller=busy,
        seconds=processor(bench, seconds, few, many),
        decisions=decisions(bench),
        crowds=crowds(),
    )


def main() -> int:
    """Measure and write."""
    with Bench() as bench:
        data = msgspec.json.format(msgspec.json.encode(measured(bench)))
    KEPT.write_bytes(data + b"\n")
    print(data.decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
