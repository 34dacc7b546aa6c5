"""Where torch keeps the extensions that are compiled at run time, such as DeepSpeed's kernels."""

from __future__ import annotations

import hashlib
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from detslurm._base.cached_modules import user_cache

VARIABLE: Final = "TORCH_EXTENSIONS_DIR"

# A build takes minutes: a lock of more seconds than this was probably left by a killed build.
_LONG = 900


def directory(env: Mapping[str, str]) -> Path:
    """A directory of the user's for this environment of Python and this kind of processor.

    Torch's own default knows an extension by its name only: environments would take or rebuild each
    other's, and a build for one processor would crash on another. Images of containers share the
    user's home and the path of their Python, so their system and their torch count, too.
    """
    if VARIABLE in env:
        return Path(env[VARIABLE])
    torch = next((found.version for found in distributions(name="torch")), "")
    facts = (sys.prefix, torch, _text("/etc/os-release"), platform.machine(), _processor())
    kind = "\0".join(facts)
    digest = hashlib.sha256(kind.encode()).hexdigest()
    return Path(user_cache(env), "torch_extensions", digest[:12])


def _processor() -> str:
    """The properties that its instructions depend on."""
    lines = _text("/proc/cpuinfo").splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def waits(folder: Path) -> Iterator[str]:
    """Messages about builds there that everyone waits for and that have probably been killed."""
    for lock in folder.glob("*/lock"):
        try:
            age = time.time() - lock.stat().st_mtime
        except OSError:
            continue
        if age > _LONG:
            yield (
                f"{lock} is {age // 60:.0f} minutes old: where no process compiles there any more,"
                " remove it, for torch waits until it is gone"
            )
