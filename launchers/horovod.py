"""Start one Horovod process per slot, over MPI: with `mpirun` on one node, with srun on several.

    python3 -m detslurm.launch.horovod [[OPTIONS...] --] (--trial TRIAL)|(SCRIPT...)

OPTIONS are those of horovodrun that tune Horovod itself, such as `--fusion-threshold-mb 1`;
`--mpi-args` go to mpirun (or srun) and win over what detslurm sets. Horovod has to be built with
the MPI that mpirun (or srun's --mpi) belongs to. Everything else is as with detslurm.launch.mpi:
lines of output with the prefix `[rank=N] `, exit status, preemption. OMP_NUM_THREADS, where it is
not set, becomes the node's share of CPUs for each process. With `--autohorovod` a run of a single
slot starts the script without Horovod.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from detslurm._base.flag import PreemptFlag
from detslurm.exec.signals import exit_with
from detslurm.launch import mpi
from detslurm.launch.arguments import LauncherArgs, PlacementError, UsageError
from detslurm.launch.launcher import launch
from detslurm.launch.nodes import Nodes, threads_each
from detslurm.launch.supervision import supervise

_AUTO = "--autohorovod"
# By the names that horovodrun's parser gives them.
_SLURMS = {
    "num_proc": "-np",
    "min_num_proc": "--min-np",
    "max_num_proc": "--max-np",
    "slots": "--slots-per-host",
    "hosts": "--hosts",
    "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
    "ssh_port": "--ssh-port",
    "ssh_identity_file": "--ssh-identity-file",
    "nics": "--network-interfaces",
    "start_timeout": "--start-timeout",
    "output_filename": "--output-filename",
    "prefix_output_with_timestamp": "--prefix-output-with-timestamp",
    "binding_args": "--binding-args",
    "use_gloo": "--gloo",
    "use_jsrun": "--jsrun",
}


def main(argv: Sequence[str], *, auto: bool = False, usage: str | None = __doc__) -> int:
    """Run the processes; returns the exit status. `auto` is the option `--autohorovod`."""
    argv, given = _without_auto(argv)
    return launch(argv, partial(_run, auto=auto or given), usage=usage)


def _without_auto(argv: Sequence[str]) -> tuple[Sequence[str], bool]:
    """The arguments without `--autohorovod` among the options of the launcher."""
    given = argv[:1] == [_AUTO]
    rest = list(argv[given:])
    if rest and rest[0].startswith("-") and "--" in rest:  # as the parser splits it
        options = rest[: rest.index("--")]
        given = given or _AUTO in options
        rest = [*(word for word in options if word != _AUTO), *rest[len(options) :]]
    return rest, given


def _run(args: LauncherArgs, nodes: Nodes, flag: PreemptFlag | None, *, auto: bool = False) -> int:
    if auto and nodes.slots == 1 and not nodes.is_multi_node:
        alone = [sys.executable, "-m", "detslurm.launch.wrap_rank", "0", "--", *args.command]
        return supervise(alone, dict(os.environ), flag=flag)
    if importlib.util.find_spec("horovod") is None:
        raise UsageError(
            "error: Horovod is not installed for this Python; it has to be built with the site's"
            " MPI and for the torch that is installed: see docs/pytorch-reference.md"
        )
    env, mpi_args = tuned(args.overrides) if args.overrides else ({}, [])
    os.environ.update({**env, "USE_HOROVOD": "1"})
    args = LauncherArgs(mpi_args, args.command)
    nodes = mpi.with_given_slots(args, nodes, flag)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_each(nodes.slots)))
    return mpi.run(args, nodes, flag)


def tuned(options: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Translates options of horovodrun: Horovod's environment, and arguments of mpirun.

    Raises `UsageError` for those that have no place here.
    """
    from horovod.runner.common.util.config_parser import set_env_from_args

    args, defaults = _parsed(options), vars(_parsed([]))
    refused = [option for name, option in _SLURMS.items() if getattr(args, name) != defaults[name]]
    if refused:
        raise PlacementError(refused, "and they talk MPI")
    if args.command:
        raise UsageError(f"error: no option of horovodrun: {shlex.join(args.command)}")
    env: dict[str, str] = {}
    set_env_from_args(env, args)
    return env, shlex.split(args.mpi_args or "")


def _parsed(options: Sequence[str]) -> Any:
    from horovod.runner.launch import parse_args

    own, sys.argv = sys.argv, ["horovodrun", "-np", "0", *options]  # it insists on a number
    try:
        return parse_args()
    except ValueError as err:
        raise UsageError(f"error: {err}") from None
    except SystemExit as end:
        if end.code:
            raise UsageError("error: horovodrun's parser refuses the options before --") from None
        raise
    finally:
        sys.argv = own


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
