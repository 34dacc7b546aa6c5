"""The usage of a run on this node: CPU time, memory and GPUs of its processes, every 15 seconds.

A thread of the node agent takes the samples, so that a driver that hangs delays nothing else.
Unreadable figures are left out of a sample: unavailable is not zero.
"""

from __future__ import annotations

import resource
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from detslurm._base.nvml import Nvml
from detslurm.exec import energy
from detslurm.exec.energy import EnergyMeter
from detslurm.exec.run_processes import RunProcesses, Used

INTERVAL = 15.0
"""Seconds between two samples."""
_KEPT = 240  # while the code saves at the end, no samples are taken out

Sample = dict[str, Any]
"""`seconds` since the sample before; `cpu`: CPU seconds in them; `hidden`: more of them, which the
sum does not show while it catches up; `resident`: bytes; `stopped`: how many processes are;
`starved`: how many others have kept from the CPUs; `gpus`: for each of the run's GPUs its `percent`
and `memory` in bytes; `energy`: joules by source. The last sample has `metered`: the sources that
were read from the beginning to the end."""


class UsageSampler:
    """Takes samples of a run while the body of the `with` statement runs, and one at its end."""

    def __init__(
        self, processes: RunProcesses, gpus: Sequence[str], interval: float = INTERVAL
    ) -> None:
        self._processes, self._gpus, self._interval = processes, gpus, interval
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._nvml: Nvml | None = None
        self._pids: frozenset[int] = frozenset()  # all of the run so far
        self._ending: Sample = {}
        self._then, self._seconds, self._seen = time.monotonic(), 0.0, 0.0
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def __enter__(self) -> UsageSampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        # A sample takes milliseconds. Where a driver hangs this thread ends with the process.
        self._thread.join(timeout=1.0)
        if self._turn.acquire(blocking=False):
            self._samples.append({**self._last(), **self._ending})

    def take(self) -> Iterator[Sample]:
        """The samples since the last call."""
        while self._samples:
            yield self._samples.popleft()

    def _run(self) -> None:
        try:
            if self._gpus:
                self._nvml = Nvml.load()
            meter = self._meter()
            while not self._over.wait(self._interval):
                with self._turn:
                    # The run may have ended since: its end waits for this thread, to take the last
                    # sample, and there are no processes to take another sample of.
                    if not self._over.is_set():
                        self._samples.append({**self._sample(), **_energy(meter)})
            self._ending = {**_energy(meter), "metered": sorted(meter.complete)}
        except Exception:
            return  # drivers and /proc fail in many ways: training goes on without samples

    def _meter(self) -> EnergyMeter:
        nvml, counters = self._nvml, {}
        if nvml is not None:
            counters["nvml"] = [energy.gpu_counter(nvml, g, self._is_own) for g in self._gpus]
        # A package's counter has the joules of all jobs on the node.
        if energy.has_whole_nodes():
            counters["rapl"] = energy.package_counters(energy.POWERCAP)
        return EnergyMeter(counters)

    def _is_own(self, nvml: Nvml, gpu: Any) -> bool:
        """Whether all processes on a GPU are known to be the run's."""
        if (found := nvml.processes(gpu)) is None:
            return False
        if not found.keys() <= self._pids:  # some may have begun since the last look
            self._pids |= self._processes.used().pids
        return found.keys() <= self._pids

    def _sample(self) -> Sample:
        used = self._processes.used()
        self._pids |= used.pids
        return {
            **self._spent(used.seconds),
            "resident": used.resident,
            "stopped": used.stopped,
            "starved": used.starved,
            **({"gpus": [self._gpu(name, used) for name in self._gpus]} if self._gpus else {}),
        }

    def _last(self) -> Sample:
        """The processes have ended: what they used in all, and the most that any of them had."""
        spent = self._spent(max(self._seconds, self._processes.ended_seconds()))
        if self._processes.shared:  # the kernel does not sum up a run
            return {**spent, "last": True}
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        return {**spent, "resident": most * 1024, "last": True}

    def _spent(self, seconds: float) -> Sample:
        now = time.monotonic()
        sample = {"seconds": round(now - self._then, 3)}
        # An unawaited child takes its seconds with it: the sum must not run backwards.
        sample["cpu"] = round(max(seconds - self._seconds, 0.0), 2)
        # The others' usage until the sum is reached again is work all the same.
        if (hidden := round(seconds - self._seen - sample["cpu"], 2)) > 0:
            sample["hidden"] = hidden
        self._then, self._seconds, self._seen = now, max(seconds, self._seconds), seconds
        return sample

    def _gpu(self, name: str, used: Used) -> dict[str, int]:
        """How busy a GPU of the run is; nothing where others are at work on it, too."""
        gpu = self._nvml.gpu(name) if self._nvml is not None else None
        if self._nvml is None or gpu is None:
            return {}
        found: dict[str, int] = {}
        processes = self._nvml.processes(gpu)
        own = {pid: size for pid, size in (processes or {}).items() if pid in used.pids}
        # Processes that are not seen here may be the run's, from another pid namespace: unknown.
        if processes is not None and None not in own.values() and (own or not processes):
            found["memory"] = sum(size or 0 for size in own.values())
        percent = self._nvml.percent(gpu)
        if percent is not None and processes is not None and own.keys() == processes.keys():
            found["percent"] = percent
        return found


def _energy(meter: EnergyMeter) -> Sample:
    found = meter.advance()
    return {"energy": found} if found else {}
