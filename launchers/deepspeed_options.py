"""Options of the `deepspeed` command: which of them mean something where Slurm starts the nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from detslurm.launch.arguments import LauncherArgs, PlacementError, UsageError

_PLACING = (
    *("-H", "--hostfile", "-i", "--include", "-e", "--exclude"),
    *("--num_nodes", "--node_rank", "--master_addr", "--master_port", "--world_info"),
    *("--launcher", "--launcher_args", "--force_multi", "--no_ssh", "--no_ssh_check", "--ssh_port"),
    *("--enable_elastic_training", "--min_elastic_nodes", "--max_elastic_nodes"),
)
_COUNT = ("--num_gpus", "--num_accelerators")
_INSTEAD = {
    "--autotuning": "it starts jobs of its own: search over values of the configuration instead",
    "--venv_script": "activate the environment in slurm.setup",
}


class NodeOptions(NamedTuple):
    """A launcher's command line, as DeepSpeed's launcher of a node takes it."""

    passed_on: list[str]
    workers: int | None
    """The number that the user wants on each node, where the user may choose."""
    command: list[str]


def read(args: LauncherArgs, *, slots: int | None) -> NodeOptions:
    """Sort the options; `slots` is how many workers Slurm has a place for here, if that is known.

    Raises `UsageError` for an option that has no place here.
    """
    given = list(_pairs(args.overrides))
    refused = [name for name, _ in given if name in _PLACING]
    workers = next((_number(name, value) for name, value in given if name in _COUNT), None)
    if workers is not None and slots not in (None, workers):
        refused += [name for name, _ in given if name in _COUNT]
    if refused:
        raise PlacementError(refused, "and detslurm where they meet")
    for name, _ in given:
        if name in _INSTEAD:
            raise UsageError(f"error: {name}: {_INSTEAD[name]}")
    names = {name for name, _ in given}
    passed_on = [word for pair in given for word in _for_node(*pair)]
    if "--bind_cores_to_rank" in names and "--bind_core_list" not in names:
        # By default DeepSpeed takes all cores of the machine, whichever the job has.
        passed_on.append(f"--bind_core_list={','.join(map(str, sorted(os.sched_getaffinity(0))))}")
    return NodeOptions(passed_on, workers, _command(args.command, is_module="--module" in names))


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """The options with their values, which may stand behind `=` or as the next word."""
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name[:2] in ("-H", "-i", "-e") and not name.startswith("--"):
            name, value = name[:2], name[2:] + value
        if not equals and rest and not rest[0].startswith("-"):
            value, equals = rest.pop(0), "="
        yield name, value if equals else None


def _for_node(name: str, value: str | None) -> list[str]:
    if name in ("--module", "--no_python", "--no_local_rank", *_COUNT):
        return []  # the command and the number of workers decide it
    if name == "--save_pid":  # a switch of the command, a process id to a node's launcher
        return [f"{name}={os.getpid()}"]
    return [name] if value is None else [f"{name}={value}"]


def _number(name: str, value: str | None) -> int:
    if value is None or not value.isdigit() or value == "0":
        raise UsageError(f"error: {name}: expected a number, not {value!r}")
    return int(value)


def _command(command: list[str], *, is_module: bool) -> list[str]:
    if is_module and command[0] != sys.executable:
        return [sys.executable, "-m", *command]
    return command
