"""Start one worker per slot with DeepSpeed's own launcher of a node, `deepspeed.launcher.launch`.

    python3 -m detslurm.launch.deepspeed [[OPTIONS...] --] (--trial TRIAL)|(SCRIPT...)

OPTIONS are those of the `deepspeed` command that mean something on each node, such as
`--bind_cores_to_rank`; those that place processes are refused, for Slurm does that: there is no ssh
and no hostfile to write. `--module -- NAME` runs a module; nothing is appended to SCRIPT's
arguments (`--no_local_rank`): a worker finds its number in LOCAL_RANK. Every line of a worker's
output gets the prefix `[rank=N] `. OMP_NUM_THREADS, where it is not set, becomes the node's share
of CPUs for each worker. A worker that fails ends the others, and its exit status becomes the
launcher's.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from detslurm._base import contract
from detslurm._base.flag import PreemptFlag
from detslurm.exec import ports
from detslurm.exec.signals import exit_with
from detslurm.launch import extensions, ranks
from detslurm.launch.arguments import LauncherArgs, UsageError
from detslurm.launch.deepspeed_options import NodeOptions, read
from detslurm.launch.launcher import launch
from detslurm.launch.nodes import Nodes
from detslurm.launch.supervision import supervise
from detslurm.launch.torch_environment import torch_environment

# After a failure DeepSpeed's launcher asks one worker after the other to end, and gives each of
# them 30 s; a worker that waits in a collective for the dead takes all of it.
_FAILURE_GRACE = 10.0
# In any of these DeepSpeed's launcher numbers the devices from 0, whichever the job has.
_DEVICES = ("ZE_AFFINITY_MASK", "ASCEND_RT_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES",
            "SDAA_VISIBLE_DEVICES", "SUPA_VISIBLE_DEVICES")  # fmt: skip
# The devices of accelerators that DeepSpeed knows, and of graphics, which may be accelerators.
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "dri", "dxg", "accel*", "hl*", "davinci*", "cambricon*")


def main(argv: Sequence[str]) -> int:
    """Run the workers of this node; returns the exit status."""
    return launch(argv, _run, usage=__doc__)


def _run(args: LauncherArgs, nodes: Nodes, flag: PreemptFlag | None) -> int:
    if importlib.util.find_spec("deepspeed") is None:
        raise UsageError(
            "error: DeepSpeed is not installed for this Python: pip install 'detslurm[deepspeed]'"
        )
    is_managed = flag is None and contract.MASTER in os.environ
    options = read(args, slots=nodes.slots if is_managed else None)
    workers = options.workers or nodes.slots
    env = environment(nodes, workers, hostfile(nodes, workers))
    for message in extensions.waits(Path(env[extensions.VARIABLE])):
        print(f"detslurm: {message}", file=sys.stderr, flush=True)
    # Held to the end: the workers can bind this port, and no other job gets it.
    held = None if nodes.is_multi_node else ports.reserve(f"deepspeed.{os.getpid()}")
    port = held.port if held is not None else nodes.port
    argv = node_launcher(options, nodes, workers, port)
    exits = ranks.ExitLog()
    status = supervise(argv, env, flag=flag, exits=exits, failure_grace=_FAILURE_GRACE)
    return status if exits.first_failure() else exit_status(status)


def node_launcher(options: NodeOptions, nodes: Nodes, workers: int, port: int | None) -> list[str]:
    """The command line of DeepSpeed's launcher for this node."""
    # Named by their numbers: two nodes may have one address (a cluster on one machine).
    world = {f"node{number}": list(range(workers)) for number in range(len(nodes.addrs))}
    return [
        *(sys.executable, "-m", "deepspeed.launcher.launch"),
        *options.passed_on,
        f"--world_info={base64.urlsafe_b64encode(json.dumps(world).encode()).decode()}",
        f"--node_rank={nodes.rank}",
        f"--master_addr={nodes.chief}",
        *([f"--master_port={port}"] if port is not None else []),
        *("--no_python", "--no_local_rank"),
        *_with_devices_of(os.environ),
        *(sys.executable, "-m", "detslurm.launch.wrap_rank", "RANK", "--"),
        *options.command,
    ]


def _with_devices_of(env: Mapping[str, str]) -> list[str]:
    """Run a command with the devices that `env` names, as Slurm has given them."""
    # Set to numbers even where there is no GPU.
    gpus = [] if "CUDA_VISIBLE_DEVICES" in env else ["-u", "CUDA_VISIBLE_DEVICES"]
    names = [name for name in ("CUDA_VISIBLE_DEVICES", *_DEVICES) if name in env]
    return ["env", *gpus, *(f"{name}={env[name]}" for name in names)]


def environment(nodes: Nodes, workers: int, hosts: Path | None) -> dict[str, str]:
    """The environment of DeepSpeed's launcher, which its workers inherit."""
    defaults = {extensions.VARIABLE: str(extensions.directory(os.environ))}
    if not any(next(Path("/dev").glob(name), None) for name in _ACCELERATORS):
        defaults["DS_ACCELERATOR"] = "cpu"  # else every process warns that it has found none
    ours = {"USE_DEEPSPEED": "1"}
    if hosts is not None:
        ours[contract.DEEPSPEED_HOSTFILE] = str(hosts)
    return torch_environment(nodes, workers, defaults, ours)


def hostfile(nodes: Nodes, workers: int) -> Path | None:
    """The nodes in DeepSpeed's own format, for code that reads them; None on a full disk."""
    try:
        fd, path = ranks.file_for_ranks("hosts")
        with os.fdopen(fd, "w") as file:
            file.writelines(f"{addr} slots={workers}\n" for addr in nodes.addrs)
    except OSError:
        return None
    return path


def exit_status(status: int) -> int:
    """Of a signal, from -9 as DeepSpeed's launcher exits with it: 247, which a shell shows as 137.

    Workers report their own ends; this is for one whose wrapper was killed.
    """
    return 128 + 256 - status if 256 - 64 <= status < 256 else status


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
