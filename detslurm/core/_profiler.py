"""System metrics of each node, sampled in the background while the profiler is on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from detslurm._base.display import Displayed
from detslurm.core._distributed import DistributedContext
from detslurm.core._recorder import AnyRecorder
from detslurm.core._system import SystemSampler

logger = logging.getLogger("detslurm.core")


class ProfilerContext(Displayed):
    """Record system metrics of this node while it is on: `core.profiler`.

    The samples become records of the groups `cpu`, `memory`, `disk`, `network` and, where there are
    GPUs, `gpu`, each averaged over several samples. `detslurm trial profile` and `Trial.profile()`
    show them. It is switched off when the context of `core.init()` is closed.
    """

    def __init__(
        self,
        agent_id: str,
        dist: DistributedContext,
        recording: AbstractContextManager[AnyRecorder],
    ) -> None:
        self._agent_id = agent_id
        self._dist = dist
        self._recording = recording  # entered when first needed: most trials never profile
        self._recorder: AnyRecorder | None = None
        self._sampling: _Sampling | None = None

    def _facts(self) -> dict[str, Any]:
        return {"node": self._agent_id, "on": self._sampling is not None}

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Begin to take samples; where it is on already nothing changes.

        Only local rank 0 of each node takes samples; the call has no effect on the others.

        Args:
            sampling_interval: Seconds between two samples, at least 0.1; 1 by default.
            samples_per_report: How many samples are averaged for each record; 10 by default.

        Raises:
            ValueError: If the interval is too short, or the number of samples is not a positive
                integer.
            RuntimeError: If psutil is not installed.
        """
        if not sampling_interval >= 0.1:
            raise ValueError(f"sampling_interval must be at least 0.1, not {sampling_interval}")
        if not _is_count(samples_per_report):
            raise ValueError(
                f"samples_per_report must be a positive integer, not {samples_per_report!r}"
            )
        if self._dist.local_rank != 0:
            return
        if self._sampling is not None:
            logger.warning("the profiler is on already")
            return
        sampler = SystemSampler()
        if self._recorder is None:
            self._recorder = self._recording.__enter__()
        self._sampling = _Sampling(sampler, sampling_interval, samples_per_report, self._report)

    def _report(self, samples: Sequence[Mapping[str, Any]]) -> None:
        assert self._recorder is not None
        now = time.time()
        for group, values in averaged(samples).items():
            metrics = {self._agent_id: values}
            self._recorder.record({"t": "profile", "group": group, "metrics": metrics, "time": now})

    def off(self) -> None:
        """Stop taking samples and record the rest; where it is off already nothing happens."""
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            sampling.stop()

    def close(self) -> None:
        """Turn it off for good and let what it recorded be written."""
        self.off()
        if self._recorder is not None:
            self._recording.__exit__(None, None, None)


class _Sampling:
    """A thread that takes samples until it is stopped."""

    def __init__(
        self,
        sampler: SystemSampler,
        interval: float,
        per_report: int,
        report: Callable[[Sequence[Mapping[str, Any]]], None],
    ) -> None:
        self._sampler, self._interval, self._per_report = sampler, interval, per_report
        self._report = report
        self._stopping = threading.Event()
        # A daemon: Python waits for other threads before it calls what `atexit` has, where a
        # context without `with` is closed and ends this thread. Cut off, it loses only samples that
        # were not reported.
        self._thread = threading.Thread(target=self._run, name="profiler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # drivers and /proc fail in many ways; training goes on
            logger.warning("profiling ends: %s: %s", type(error).__name__, error)

    def _sample(self) -> None:
        samples: list[Mapping[str, Any]] = []
        while not self._stopping.wait(self._interval):
            samples.append(self._sampler.sample())
            if len(samples) == self._per_report:
                self._report(samples)
                samples = []
        if samples:
            self._report(samples)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def averaged(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of every number, at any depth, over the samples that have it."""
    result: dict[str, Any] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        values = [sample[name] for sample in samples if name in sample]
        if isinstance(values[0], Mapping):
            result[name] = averaged(values)
        else:
            result[name] = sum(values) / len(values)
    return result
