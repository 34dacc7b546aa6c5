"""Measurements of a node: processors, memory, disks, network and GPUs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from typing import Any

from detslurm._base.nvml import Nvml

_GIGABYTE = 1e9


class SystemSampler:
    """Samples of this node; rates are over the time since the sample before.

    Raises `RuntimeError` where psutil is missing. GPUs are measured where the driver and
    nvidia-ml-py are.
    """

    def __init__(self) -> None:
        try:
            import psutil
        except ImportError as error:
            raise RuntimeError(
                "the profiler needs psutil: `pip install 'detslurm[profiler]'`"
            ) from error
        self._psutil = psutil
        self._nvml = Nvml.load()
        # Not the home directories: asking a network file system that hangs would hang with it.
        self._paths = sorted({"/", tempfile.gettempdir()})
        psutil.cpu_percent(interval=None)
        self._counters = self._read_counters()

    def sample(self) -> dict[str, Any]:
        """The node's figures of this moment, by group."""
        before, now = self._counters, self._read_counters()
        self._counters = now
        rates = rates_between(before, now)
        disk = {name: rates[name] for name in rates if name.startswith("disk_")}
        for path in self._paths:
            disk[path] = {"disk_util": self._psutil.disk_usage(path).percent}
        found: dict[str, Any] = {
            "cpu": {"cpu_util_simple": self._psutil.cpu_percent(interval=None)},
            "memory": {"memory_free": self._psutil.virtual_memory().available / _GIGABYTE},
            "disk": disk,
            "network": {name: rates[name] for name in rates if name.startswith("net_")},
        }
        if self._nvml is not None:
            found["gpu"] = _gpus(self._nvml)
        return found

    def _read_counters(self) -> dict[str, float]:
        network, disks = self._psutil.net_io_counters(), self._psutil.disk_io_counters()
        counters = {"time": time.monotonic()}
        if network is not None:
            counters["net_throughput_sent"] = network.bytes_sent
            counters["net_throughput_recv"] = network.bytes_recv
        if disks is not None:  # in some containers there is none to be seen
            counters["disk_iops"] = disks.read_count + disks.write_count
            counters["disk_throughput_read"] = disks.read_bytes
            counters["disk_throughput_write"] = disks.write_bytes
        return counters


def rates_between(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, Any]:
    """The growth of each counter per second; a new counter is left out."""
    seconds = max(now["time"] - before["time"], 1e-6)
    return {
        name: max(now[name] - before[name], 0) / seconds
        for name in now
        if name != "time" and name in before
    }


def _gpus(nvml: Nvml) -> dict[str, Any]:
    """Figures of each GPU; what a driver doesn't measure (how busy a MIG slice is) is left out."""
    found: dict[str, dict[str, Any]] = {}
    for uuid, gpu in nvml.gpus():
        memory = nvml.memory(gpu)
        own = {"gpu_util": nvml.percent(gpu), "gpu_free_memory": memory and memory.free}
        known = {name: value for name, value in own.items() if value is not None}
        if known:
            found[uuid] = known
    return found
