"""Two workers that a launcher of torch's ranks starts on this machine, and how they fare."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from detslurm._base.child_processes import descendants
from detslurm._base.contract import PREEMPT_FLAG
from detslurm._base.flag import PreemptFlag
from tests.cluster import processes
from tests.cluster.processes import alive, killing
from tests.cluster.spec import LIGHT_STARTS
from tests.cluster.waiting import wait_for
from tests.light import LIGHT

needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)


def whole_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let launchers import what they do elsewhere: the suite's others leave out what they can."""
    for name in LIGHT_STARTS:
        monkeypatch.delenv(name)


WORKER = """\
import os, pathlib, signal, sys, time
other = pathlib.Path(__file__).with_suffix(".up")
told = []
if sys.argv[1] == "outlive":
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
print(os.environ["DET_CHIEF_IP"], os.getpid(), repr(os.environ.get(sys.argv[2])), flush=True)
if sys.argv[1] == "fail" and os.environ["RANK"] == "1":
    while not other.exists():
        time.sleep(0.01)
    sys.exit(7)
other.touch()
while not told:
    time.sleep(0.01)
time.sleep(1)
"""


class Workers:
    """Two workers of one launcher, by the command that starts it."""

    def __init__(self, module: str, options: Sequence[str], folder: Path) -> None:
        worker = folder / "worker.py"
        worker.write_text(WORKER)
        self._command = [sys.executable, "-m", module, *options, "--", str(worker)]

    @contextlib.contextmanager
    def started(
        self, what: str, variable: str, shown: str, env: Mapping[str, str] | None = None
    ) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
        """The launcher and its workers' process ids, once both show the variable as `shown`."""
        argv = [*self._command, what, variable]
        environment = os.environ | LIGHT | dict(env or {})
        with processes.started(argv, stdout=subprocess.PIPE, env=environment) as launcher:
            assert launcher.stdout is not None
            lines = (line for line in launcher.stdout if line.startswith("[rank="))
            words = sorted(next(lines).split(maxsplit=3) for _ in range(2))
            for rank, (prefix, chief, _, value) in enumerate(words):
                assert (prefix, chief) == (f"[rank={rank}]", "127.0.0.1")
                assert value.rstrip("\n") == repr(shown)
            pids = [int(pid) for _, _, pid, _ in words]
            with killing(*pids):
                yield launcher, pids

    def one_fails(self, variable: str, shown: str, env: Mapping[str, str] | None = None) -> None:
        """The launcher leaves within seconds, with the status of the worker that failed."""
        with self.started("fail", variable, shown, env) as (launcher, pids):
            assert launcher.wait(120) == 7
            assert not any(map(alive, pids))

    def all_are_asked_to_end(self, variable: str, shown: str) -> None:
        """SIGTERM without a preemption: somebody wants the launcher to end, and so its workers."""
        with self.started("stay", variable, shown) as (launcher, pids):
            launcher.terminate()
            assert launcher.wait(120) == 128 + signal.SIGTERM
            assert not any(map(alive, pids))

    def all_are_preempted(self, variable: str, shown: str) -> None:
        """SIGTERM to every process while the flag is up: who stands between lives on."""
        flag = PreemptFlag.create()
        with self.started("outlive", variable, shown, {PREEMPT_FLAG: flag.name}) as (
            launcher,
            pids,
        ):
            flag.request_preemption()
            for pid in [launcher.pid, *descendants(launcher.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            assert launcher.wait(120) == 0
            assert not any(map(alive, pids))
        flag.close()

    def launcher_is_killed(self, variable: str, shown: str) -> None:
        """kill -9 of the launcher ends what it has started, and the workers too."""
        with self.started("stay", variable, shown) as (launcher, pids):
            below = [*descendants(launcher.pid), *pids]
            launcher.kill()
            launcher.wait()
            wait_for(lambda: not any(map(alive, below)), 120, "the workers' death")
