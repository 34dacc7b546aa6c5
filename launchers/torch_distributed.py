"""Start one worker per slot with PyTorch's own launcher, `torch.distributed.run`.

    python3 -m detslurm.launch.torch_distributed [[OVERRIDES...] --] (--trial TRIAL)|(SCRIPT...)

OVERRIDES are options of torch.distributed.run that win over what detslurm sets. SCRIPT is a
Python file with its arguments, `-m module`, or any other command. Every line of a worker's output
gets the prefix `[rank=N] `. OMP_NUM_THREADS, where it is not set, becomes the node's share of CPUs
for each worker. A worker that fails ends the others, and its exit status becomes the
launcher's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from detslurm._base.flag import PreemptFlag
from detslurm.exec.signals import exit_with
from detslurm.launch.arguments import LauncherArgs
from detslurm.launch.launcher import launch
from detslurm.launch.nodes import Nodes
from detslurm.launch.supervision import supervise
from detslurm.launch.torch_environment import torch_environment

_RENDEZVOUS = ("--rdzv", "--master", "--standalone", "--node")
# How long torchrun waits for workers that it asked to end before it kills them.
_SHUTDOWN_SECONDS = "10"


def main(argv: Sequence[str]) -> int:
    """Run the workers of this node; returns the exit status."""
    return launch(argv, _run, usage=__doc__)


def _run(args: LauncherArgs, nodes: Nodes, flag: PreemptFlag | None) -> int:
    return supervise(torchrun(args, nodes), environment(args, nodes), flag=flag)


def torchrun(args: LauncherArgs, nodes: Nodes) -> list[str]:
    """The command line of torch.distributed.run for this node."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(nodes.addrs)}",
        f"--nproc-per-node={nodes.slots}",
        "--max-restarts=0",
        *_rendezvous_options(args, nodes),
        *args.overrides,
        "--no-python",
        *(sys.executable, "-m", "detslurm.launch.wrap_rank", "RANK", "--"),
        *args.command,
    ]


def _rendezvous_options(args: LauncherArgs, nodes: Nodes) -> list[str]:
    if nodes.is_multi_node:
        port = [f"--master-port={nodes.port}"] if nodes.port is not None else []
        return [f"--node-rank={nodes.rank}", f"--master-addr={nodes.chief}", *port]
    chosen = any(arg.startswith(_RENDEZVOUS) for arg in args.overrides)
    return [] if chosen else ["--standalone"]


def environment(args: LauncherArgs, nodes: Nodes) -> dict[str, str]:
    """The environment of torchrun, which its workers inherit."""
    return torch_environment(
        nodes,
        _workers(args, nodes),  # a count of threads spares a warning: else torchrun sets 1
        defaults={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": _SHUTDOWN_SECONDS},
        ours={"USE_TORCH_DISTRIBUTED": "True"},
    )


def _workers(args: LauncherArgs, nodes: Nodes) -> int:
    given = dict(arg.replace("_", "-").partition("=")[::2] for arg in args.overrides)
    count = given.get("--nproc-per-node", "")
    return int(count) if count.isdigit() and count != "0" else nodes.slots


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
