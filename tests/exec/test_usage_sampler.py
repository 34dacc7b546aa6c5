"""What a node agent counts of its run, compared with what the processes themselves did."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detslurm._base import contract
from detslurm._base.nvml import Nvml
from detslurm.exec.agent_protocol import parse_report
from detslurm.exec.orphans import RunMark
from detslurm.exec.run_processes import RunProcesses, Used
from detslurm.exec.usage_sampler import Sample, UsageSampler
from detslurm.store.run_usage import is_idle
from tests.cluster.waiting import wait_for
from tests.exec.nodes import agent

PATIENCE = 120.0
# Another in each worker of the suite: marked processes count wherever they are.
MARK = RunMark(f"/store/experiments/{os.getpid()}", 7, 3, "slurm 12")
MARKED = {
    contract.EXPERIMENT_DIR: MARK.experiment,
    contract.TRIAL_ID: "7",
    contract.TRIAL_RUN_ID: "3",
    contract.JOB: MARK.job,
}
# Holds 60 MB and uses a second of CPU, then says so and waits.
WORKS = """\
import sys, time
held = b"x" * 60_000_000
while time.process_time() < 1.0:
    pass
pages = int(open("/proc/self/statm").read().split()[1])
print(time.process_time(), pages, flush=True)
sys.stdin.read()
"""


def start(script: str, **env: str) -> subprocess.Popen[str]:
    """A process of Python's, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", script],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> list[float]:
    """The numbers on its next line."""
    assert process.stdout is not None
    return [float(word) for word in process.stdout.readline().split()]


def apart() -> RunProcesses:
    """All but what runs below this process already: the daemons of a cluster, say."""
    return RunProcesses(MARK, RunProcesses(MARK).used().pids)


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_children_count_with_what_they_have_waited_for() -> None:
    """A process below this one, then the same CPU time once it has ended and was waited for."""
    processes = apart()
    before = processes.used()
    child = start(WORKS)
    try:
        seconds, pages = said(child)
        used = processes.used()
        assert used.pids - before.pids == {child.pid}
        assert used.seconds - before.seconds == pytest.approx(seconds, abs=0.2)
        assert used.resident - before.resident == pytest.approx(
            pages * os.sysconf("SC_PAGE_SIZE"), rel=0.2
        )
        assert not used.stopped
        child.send_signal(signal.SIGSTOP)
        wait_for(lambda: processes.used().stopped, PATIENCE, "the stop to show")
    finally:
        end(child)
    after = processes.used()
    assert after.seconds >= used.seconds and child.pid not in after.pids


def test_a_rank_in_a_step_of_its_own_is_known_by_its_mark() -> None:
    """It is nobody's child here; what it used stays counted when it ends. Others' never counts."""
    aside = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-I', '-S', '-c', sys.argv[1]])"
    )
    argv = [sys.executable, "-I", "-S", "-c", aside, WORKS]
    found: list[subprocess.Popen[str]] = []
    processes = apart()
    for env in (MARKED, {**MARKED, contract.TRIAL_RUN_ID: "2"}):
        one = subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        one.wait()  # what it has started goes to init, or whoever stands in for it
        found.append(one)
    try:
        for one in found:
            said(one)
        used = processes.used()
        (pid,) = (p for p in used.pids if Path(f"/proc/{p}/environ").read_bytes().find(b"=3\0") > 0)
        assert len(used.pids) == 1 and 0.9 <= used.seconds <= 10
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not processes.used().pids, PATIENCE, "its end")
        assert processes.used().seconds >= 0.9
    finally:
        for one in found:
            one.communicate()  # the end of their input ends them


class Scripted(RunProcesses):
    """Processes that use what the test says."""

    def __init__(self, *used: Used | Exception) -> None:
        super().__init__(MARK)
        self._script = list(used)
        self.asked = threading.Event()

    def used(self) -> Used:
        value = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        self.asked.set()
        if isinstance(value, Exception):
            raise value
        return value


def samples(processes: Scripted, gpus: list[str], count: int = 1) -> list[Sample]:
    """What a sampler finds at its first looks: so many at least."""
    with UsageSampler(processes, gpus, interval=0.01) as sampler:
        assert processes.asked.wait(PATIENCE)
        first: list[Sample] = []

        def taken() -> bool:
            first.extend(sampler.take())
            return len(first) >= count

        wait_for(taken, PATIENCE, "the samples")
    return first


def gpu_library(processes: dict[int, int | None] | None, percent: int | None) -> Nvml:
    """One GPU with these processes on it."""

    class Refused(Exception):
        pass

    def asked(value: Any) -> Any:
        if value is None:
            raise Refused
        return value

    running = None if processes is None else [
        SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in processes.items()
    ]  # fmt: skip
    rates = None if percent is None else SimpleNamespace(gpu=percent)
    return Nvml(
        SimpleNamespace(
            NVMLError=Refused,
            nvmlDeviceGetHandleByIndex=lambda index: asked(index if index < 1 else None),
            nvmlDeviceGetComputeRunningProcesses=lambda gpu: asked(running),
            nvmlDeviceGetUtilizationRates=lambda gpu: asked(rates),
        )
    )


@pytest.mark.parametrize(
    ("processes", "percent", "expected"),
    [
        ({10: 7, 11: 8}, 40, {"memory": 15, "percent": 40}),
        ({}, 0, {"memory": 0, "percent": 0}),  # nobody is on it: it is idle, and that is known
        ({10: 7, 99: 8}, 40, {"memory": 7}),  # shared with others: how busy is not ours to say
        ({99: 8}, 40, {}),  # others', or ours in a pid namespace that is not seen from here
        ({10: None}, 40, {"percent": 40}),
        ({10: 7}, None, {"memory": 7}),
        (None, 40, {}),
    ],
)
def test_of_a_gpu_counts_what_the_run_does(
    processes: dict[int, int | None] | None,
    percent: int | None,
    expected: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the driver does not say is left out; GPU 1 of the run has been lost."""
    library = gpu_library(processes, percent)
    monkeypatch.setattr(Nvml, "load", lambda: library)
    used = Used(1.0, 1000, 0, 0, frozenset({10, 11}))
    assert samples(Scripted(used), ["0", "1"])[0]["gpus"] == [expected, {}]
    assert "gpus" not in samples(Scripted(used), [])[0]


def test_seconds_never_run_backwards() -> None:
    """A child that nobody waited for takes its seconds with it."""
    script = [Used(5.0, 1, 0, 0, frozenset()), Used(2.0, 1, 0, 0, frozenset())]
    found = samples(Scripted(*script), [])
    assert found[0]["cpu"] == 5.0 and all(sample["cpu"] == 0.0 for sample in found[1:])


def test_code_is_not_idle_while_its_sum_catches_up() -> None:
    """Of a parent that ignores SIGCHLD a worker ends after hours: the sum stands still for as long,
    while the next worker computes. Code that waits then is idle as ever."""
    seconds = [900.0, 0.1, 15.0, 30.0, 30.0]
    found = samples(Scripted(*(Used(each, 1, 0, 0, frozenset()) for each in seconds)), [], 5)
    assert [sample["cpu"] for sample in found[:5]] == [900.0, 0.0, 0.0, 0.0, 0.0]
    looks = [is_idle({**sample, "seconds": 15.0}, 1) for sample in found[:5]]
    assert looks == [False, True, False, False, True]


def test_a_look_that_fails_ends_the_sampling_alone() -> None:
    """Also then there is a last sample, of what the kernel has counted."""
    processes = Scripted(OSError("no /proc"))
    with UsageSampler(processes, [], interval=0.01) as sampler:
        assert processes.asked.wait(PATIENCE)
    (last,) = sampler.take()
    assert last.keys() == {"seconds", "cpu", "resident", "last"}


def test_an_agent_reports_what_its_code_used(tmp_path: Path) -> None:
    """Of a run that is over before the first look, too."""
    script = """\
        import json, os, pathlib, resource, time
        held = b"x" * 80_000_000
        while time.process_time() < 0.5:
            pass
        own = resource.getrusage(resource.RUSAGE_SELF)
        words = {"cpu": own.ru_utime + own.ru_stime, "resident": own.ru_maxrss * 1024}
        pathlib.Path(os.environ["HERE"], "own.json").write_text(json.dumps(words))
    """
    with agent(tmp_path, script) as process:
        assert process.stdout is not None
        lines = process.stdout.read().decode().split("\n")
    found = [report for line in lines if (report := parse_report(line)) is not None]
    # A second one where all this takes longer than between two looks.
    *earlier, usage = (report for report in found if report["event"] == "usage")
    own = json.loads((tmp_path / "own.json").read_text())
    cpu = sum(one["cpu"] for one in (*earlier, usage))
    assert cpu == pytest.approx(own["cpu"], abs=0.5)
    assert usage["resident"] == pytest.approx(own["resident"], rel=0.1)
    assert found.index(usage) < [report["event"] for report in found].index("ended")
