"""Open MPI on a busy machine: the one place that knows how it fails before any of our code runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from subprocess import CompletedProcess

ENV = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # Python says where a rank crashed, and not Open MPI, which knows less.
    "PYTHONFAULTHANDLER": "1",
    "OMPI_MCA_opal_signal": "",
}
ONE_MACHINE = {"OMPI_MCA_btl": "self,tcp"}
"""For Open MPI 4 on several nodes that are one machine: it mixes up their shared memory."""

STARTS = 5


def run_mpi(start: Callable[[], CompletedProcess[str]]) -> CompletedProcess[str]:
    """Start an MPI program with `ENV`, again where Open MPI loses a rank in MPI_Init.

    Version 4 crashes there when it connects by TCP to a rank that is late; version 5 gives up.
    """
    for _ in range(STARTS):
        done = start()
        if not lost_in_mpi_init(f"{done.stdout}\n{done.stderr}"):
            break
    return done


def lost_in_mpi_init(said: str) -> bool:
    """Whether a rank failed in MPI_Init, which mpi4py calls when it is imported."""
    if "*** An error occurred in MPI_Init" in said:
        return True
    stacks = said.split("Fatal Python error: Segmentation fault")[1:]
    innermost = (re.search(r'File "([^"]*)"', stack) for stack in stacks)
    return any(frame is not None and "<frozen importlib" in frame[1] for frame in innermost)
