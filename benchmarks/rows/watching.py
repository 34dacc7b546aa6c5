"""What `detslurm top` costs for as long as it is open; BENCH_TOP_SECONDS makes it longer."""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.queues import slurm_commands, written
from benchmarks.report import Row, Skip
from detslurm.store import RunLog, Store, TrialDir
from detslurm.store.records import Created
from tests.cli.tmux import TmuxTerminal, needs_tmux
from tests.sdk.scenes import resolved

SECONDS = float(os.environ.get("BENCH_TOP_SECONDS", "12"))
TRIALS = 4
JOB = "77"
_CLOCK = os.sysconf("SC_CLK_TCK")


def measure(bench: Bench) -> Iterator[Row]:
    """In a terminal of tmux that shows the curves of trials which report twice a second."""
    if needs_tmux.args[0]:
        raise Skip(str(needs_tmux.kwargs["reason"]))
    folder = bench.folder()
    environment = bench.environment(folder)
    commands = slurm_commands(folder, 0, folder)
    rows = [{"ArrayJobID": JOB, "ArrayTaskID": str(n), "State": "RUNNING"} for n in range(TRIALS)]
    (commands / "queue.txt").write_text("".join(map(written, rows)))
    environment["PATH"] = f"{_counting(commands)}:{commands}:{environment['PATH']}"
    environment["SLURM_CONF"] = str(folder / "slurm.conf")
    with _reporting(_running(Store.open(Path(environment["DETSLURM_ROOT"])))):
        spent, asked = _watched(folder, environment)
    what = f"detslurm top for {SECONDS:.0f} s beside {TRIALS} trials that report"
    yield Row(what=what, ours=100 * spent / SECONDS, unit="% of a core", most=2)
    yield Row(what=what, ours=asked, unit="calls of squeue", most=SECONDS // 30 + 1)


def _counting(commands: Path) -> Path:
    """A squeue that notes each call before it answers."""
    folder = commands / "counting"
    folder.mkdir()
    text = f'#!/bin/sh\necho >>"{commands}/calls"\nexec "{commands}/squeue" "$@"\n'
    (folder / "squeue").write_text(text)
    (folder / "squeue").chmod(0o755)
    return folder


def _running(store: Store) -> list[TrialDir]:
    """Trials of one experiment whose runs have begun."""
    experiment = store.create_experiment(
        Created(name="watched", trials=TRIALS, metric="loss"), resolved()
    )
    jobs = [{"cluster": "slurm", "job_id": JOB, "first_index": 0}]
    experiment.append({"type": "submitted", "jobs": jobs})
    first = experiment.created().first_trial
    trials = [experiment.trial(first + place) for place in range(TRIALS)]
    for place, trial in enumerate(trials):
        job = {"cluster": "slurm", "ref": f"{JOB}_{place}"}
        trial.open_run({"trial": trial.id, "hparams": {"lr": 0.1}, "time": time.time(), "job": job})
    return trials


@contextmanager
def _reporting(trials: Sequence[TrialDir]) -> Iterator[None]:
    """The trials report until the end of the block: training, and a validation in ten."""
    over = threading.Event()

    def report() -> None:
        logs = [RunLog.open(one.records_path(1)) for one in trials]
        stream, steps = random.Random(1), 0
        while not over.wait(0.5):
            steps += 1
            for log in logs:
                for group in ("training", "validation") if steps % 10 == 0 else ("training",):
                    metrics = {"loss": 100 / (100 + steps) + 0.1 * stream.random()}
                    log.append({"t": "metrics", "group": group, "steps": steps, "metrics": metrics})
                log.flush()
        for log in logs:
            log.close()

    thread = threading.Thread(target=report)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watched(folder: Path, environment: dict[str, str]) -> tuple[float, int]:
    """Seconds of the processor after the start, and calls of squeue from the start on."""

    def run(argv: list[str]) -> str:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    pid = shlex.quote(str(folder / "pid"))
    top = f"{shlex.quote(sys.executable)} -m detslurm top"
    command = f"sh -c 'echo $$ >{pid}; exec {top}'"
    terminal = TmuxTerminal(run, str(folder / "tmux"), command, (80, 24))
    try:
        terminal.shows("watched")
        terminal.press("2")
        terminal.shows("validation loss by steps")
        number = int((folder / "pid").read_text())
        before = _processor_time(number)
        time.sleep(SECONDS)
        spent = _processor_time(number) - before
        assert "d trial " in terminal.screen, terminal.screen
    finally:
        terminal.end()
    return spent, len((folder / "bin" / "calls").read_text().splitlines())


def _processor_time(pid: int) -> float:
    """Of a process without its children, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK
