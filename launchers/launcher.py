"""The frame of every launcher: read the arguments, join the run, record its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from detslurm._base import contract
from detslurm._base.child_processes import die_with_parent
from detslurm._base.flag import PreemptFlag
from detslurm.exec.signals import discard_signals
from detslurm.exec.unmanaged_job import UnmanagedJob
from detslurm.launch.arguments import LauncherArgs, UsageError, parse
from detslurm.launch.nodes import Nodes, join_run, nodes_here
from detslurm.launch.ranks import check_flag
from detslurm.slurm import SlurmError
from detslurm.store import StoreError

Run = Callable[[LauncherArgs, Nodes, PreemptFlag | None], int]
"""Runs this node's workers to the end. The flag is there to raise where no agent has a flag."""


def launch(argv: Sequence[str], run: Run, *, usage: str | None) -> int:
    """Run the workers that a launcher's command line asks for; returns the exit status."""
    if argv and argv[0] in ("-h", "--help"):
        print(usage)
        return 0
    unmanaged: UnmanagedJob | None = None
    reason: str | None = None
    try:
        args = parse(argv)
        unmanaged = join_run(argv)
        check_flag()
        if unmanaged is None and contract.MASTER in os.environ:
            die_with_parent()  # workers must not outlive the agent, which would end them
            discard_signals()
        status = run(args, nodes_here(), unmanaged.flag if unmanaged is not None else None)
    except (UsageError, RuntimeError, SlurmError, StoreError, OSError) as err:
        print(err, file=sys.stderr)
        status, reason = 1, str(err)
    if unmanaged is not None:
        unmanaged.finish(status, reason)
    return status
