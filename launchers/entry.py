"""What every launcher does around its work: read its words, enter the run, say how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from detslurm._flag import PreemptFlag
from detslurm.exec.processes import die_with_parent
from detslurm.exec.signals import let_pass
from detslurm.launch.nodes import Nodes, enter, nodes_here
from detslurm.launch.ranks import check_flag
from detslurm.launch.words import UsageError, Words, parse
from detslurm.slurm import SlurmError

Run = Callable[[Words, Nodes, PreemptFlag | None], int]
"""Runs this node's workers to the end. The flag is there to raise where no agent has one."""


def launch(argv: Sequence[str], run: Run, *, usage: str | None) -> int:
    """Run the workers that a launcher's command line asks for; returns the exit status."""
    if argv and argv[0] in ("-h", "--help"):
        print(usage)
        return 0
    try:
        words = parse(argv)
        embedded = enter(argv)
        check_flag()
    except (UsageError, RuntimeError) as err:
        print(err, file=sys.stderr)
        return 1
    if embedded is None and "DET_MASTER" in os.environ:
        die_with_parent()  # the agent's death must not leave workers without anybody's care
        let_pass()
    try:
        status = run(words, nodes_here(), embedded.flag if embedded is not None else None)
    except (UsageError, SlurmError) as err:
        print(err, file=sys.stderr)
        status = 1
    if embedded is not None:
        embedded.finish(status)
    return status
