"""Podman as a job calls it: its own state is where TMPDIR and XDG_RUNTIME_DIR say."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

PODMAN: Final = ("podman", "podman-hpc")
_SECONDS = 30.0  # for an answer


def podman_lines(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """The lines that a call of Podman prints; none where it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            argv,
            env={**without_lost_runtime_dir(environment), "TMPDIR": "/tmp"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
        return done.stdout.splitlines()
    return []


def without_lost_runtime_dir(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the login node's XDG_RUNTIME_DIR, which Podman would insist on."""
    lost = not os.access(env.get("XDG_RUNTIME_DIR", "/tmp"), os.W_OK)
    return {name: value for name, value in env.items() if not lost or name != "XDG_RUNTIME_DIR"}
