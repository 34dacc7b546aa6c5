"""NVIDIA's management library: the figures of GPUs, where the driver and nvidia-ml-py are.

A figure that a driver does not measure is None, never 0: such as the load of a GPU's slice (MIG).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self


class Nvml:
    """The library, ready for use; a handle stands for one GPU."""

    def __init__(self, library: Any) -> None:
        self._library = library

    @classmethod
    def load(cls) -> Self | None:
        """The library, None without a GPU, a driver or nvidia-ml-py."""
        if not Path("/dev/nvidiactl").exists():
            return None
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no package, no driver, another version: no GPU figures then
            return None
        return cls(pynvml)

    def gpus(self) -> Iterator[tuple[str, Any]]:
        """UUID and handle of each GPU that is visible here."""
        for index in range(self._library.nvmlDeviceGetCount()):
            handle = self._library.nvmlDeviceGetHandleByIndex(index)
            uuid = self._library.nvmlDeviceGetUUID(handle)
            yield uuid if isinstance(uuid, str) else uuid.decode(), handle

    def gpu(self, name: str) -> Any:
        """The handle of a GPU by what CUDA_VISIBLE_DEVICES calls it; None where there is none."""
        library = self._library
        if name.isdigit():
            return self._asked(library.nvmlDeviceGetHandleByIndex, int(name))
        return self._asked(library.nvmlDeviceGetHandleByUUID, name)

    def percent(self, handle: Any) -> int | None:
        """The part of the last moment in which it was at work."""
        rates = self._asked(self._library.nvmlDeviceGetUtilizationRates, handle)
        return None if rates is None else int(rates.gpu)

    def memory(self, handle: Any) -> Any:
        """Its memory: `free`, `used` and `total` in bytes."""
        return self._asked(self._library.nvmlDeviceGetMemoryInfo, handle)

    def processes(self, handle: Any) -> dict[int, int | None] | None:
        """The bytes that each process has on it, by pid; None of one where that is unknown."""
        found = self._asked(self._library.nvmlDeviceGetComputeRunningProcesses, handle)
        return None if found is None else {one.pid: one.usedGpuMemory for one in found}

    def joules(self, handle: Any) -> float | None:
        """Its energy since the driver was loaded; None before Volta, and of a slice."""
        # Packages of before 2018 have no such function.
        counter = getattr(self._library, "nvmlDeviceGetTotalEnergyConsumption", None)
        found = None if counter is None else self._asked(counter, handle)
        return None if found is None else float(found / 1000)

    def _asked(self, function: Any, argument: Any) -> Any:
        try:
            return function(argument)
        except self._library.NVMLError:
            return None
