"""The hardware of this node, for the record of a run: a few reads of /proc, and no program."""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import suppress
from typing import Any, Final

_CPU: Final = "/proc/cpuinfo"
_NVIDIA: Final = "/proc/driver/nvidia"
_PIECE: Final = 4096  # bytes: the first processor's part is shorter
_DRIVER = re.compile(r"^NVRM version: .*?\s(\d+\.\d[\d.]*)\s", re.MULTILINE)
# Set by Apptainer and Singularity for the processes in a container.
_IMAGES: Final = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")


def hardware() -> dict[str, Any]:
    """The fields of a `Hardware` that are known here."""
    system = os.uname()
    found: dict[str, Any] = {"kernel": system.release, "machine": system.machine}
    if cpu := _value(_start(_CPU), "model name"):
        found["cpu"] = cpu
    if driver := _DRIVER.search(_start(f"{_NVIDIA}/version")):
        found |= {"driver": driver[1], "gpus": _gpus()}
    if image := next(filter(None, map(os.environ.get, _IMAGES)), None):
        found["image"] = image
    return found


def _gpus() -> dict[str, int]:
    with suppress(OSError):
        names = os.listdir(f"{_NVIDIA}/gpus")  # noqa: PTH208 (pathlib takes longer)
        texts = (_start(f"{_NVIDIA}/gpus/{name}/information") for name in names)
        return dict(Counter(filter(None, (_value(text, "Model") for text in texts))))
    return {}


def _value(text: str, name: str) -> str | None:
    """The value of a line `name: value`."""
    found = re.search(rf"^{name}\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def _start(path: str) -> str:
    """The first part of a file; empty where it can't be read."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(handle, _PIECE).decode(errors="replace")
        finally:
            os.close(handle)
    return ""
