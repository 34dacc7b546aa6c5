"""Adapt another project's launcher to its run: torchrun, accelerate, deepspeed.

It begins in runs whose entrypoint names such a launcher. In all other processes it does nothing.
In a launcher it does two things:

- It puts the run's nodes and port before the user's arguments, where the launcher reads them from
  no variable. The user's own options come later, so that they win.
- It keeps a preemption's signal from the launcher. Slurm sends SIGTERM to every process of the
  step; a launcher takes it as its end and kills the ranks that save.

The Python of the code may be another one than detslurm's: so this file imports nothing of ours.
"""

# Every Python of the run imports this file, and pathlib is heavy.
# ruff: noqa: PTH111, PTH113, PTH118, PTH119, PTH123

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from typing import Any, Callable, Mapping, Sequence  # noqa: UP035 - Python 3.8 imports it, too

_TORCH = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
_ACCELERATE = ("accelerate", "accelerate-launch", "accelerate.commands.launch")
_DEEPSPEED = ("deepspeed", "deepspeed.launcher.runner")
_GUARDED_ONLY = ("deepspeed.launcher.launch",)
_MODULE = re.compile(r"-[bBdEhiIOPqsSuvVx]*m(.*)")  # `-um`, too
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
# The agent raises the flag at once; its node may be crowded.
_LONGEST_DELAY = 2.0
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
# Options of accelerate by which the user chooses how processes are started.
_CHOICES = ("--config_file", "--cpu", "--multi_gpu", "--tpu", "--use_", "--mpirun")


def launcher_name(argv: Sequence[str], command: Sequence[str]) -> str:
    """The name of the program or module that this Python runs."""
    if argv[0] != "-m":
        return os.path.basename(argv[0])
    at, module = next(
        (at, found[1])
        for at, found in enumerate(map(_MODULE.fullmatch, command))
        if at and found is not None
    )
    return module or command[at + 1]


def with_placement(name: str, argv: list[str], env: Mapping[str, str]) -> list[str]:
    """The arguments of a launcher with the options that place its ranks."""
    # Underscores, as all releases of these launchers take them.
    placement: Callable[[Sequence[str], Mapping[str, str]], list[str]]
    if name in _TORCH:
        at, placement = 1, _torch_options
    elif name in _ACCELERATE:
        at, placement = (2 if name == "accelerate" else 1), _accelerate_options
        if name == "accelerate" and argv[1:2] != ["launch"]:
            return argv
    elif name in _DEEPSPEED:
        at, placement = 1, _deepspeed_options
    else:
        return argv
    return [*argv[:at], *placement(argv[at:], env), *argv[at:]]


def _torch_options(args: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Without an endpoint the backend c10d has one port for all runs of a node."""
    c10d = "PET_RDZV_BACKEND" in env or _has(args, "--rdzv_backend", "--rdzv-backend")
    if not c10d or "PET_RDZV_ENDPOINT" in env:
        return []
    met = _nodes(env)
    rank = met["container_rank"]
    return [
        f"--rdzv_endpoint={env['MASTER_ADDR']}:{env['MASTER_PORT']}",
        # Else it looks both up by this machine's name, which may lead nowhere but here.
        f"--rdzv_conf=is_host={'false' if rank else 'true'}",
        f"--local_addr={met['container_addrs'][rank]}",
    ]


def _accelerate_options(args: Sequence[str], env: Mapping[str, str]) -> list[str]:
    met = _nodes(env)
    slots, options = sum(met["container_slot_counts"]), []
    chosen = _has(args, *_CHOICES) or _value(args, "--num_processes") == "1" or _has_defaults(env)
    if slots > 1 and not chosen:
        # Else each rank would train alone, without GPUs and with one GPU a node.
        options = ["--multi_gpu", f"--num_processes={slots}"]
    if len(met["container_addrs"]) > 1:
        options += [
            f"--num_machines={len(met['container_addrs'])}",
            f"--machine_rank={met['container_rank']}",
            f"--main_process_ip={env['MASTER_ADDR']}",
            "--deepspeed_multinode_launcher=standard",
        ]
    return [*options, f"--main_process_port={env['MASTER_PORT']}"]


def _has_defaults(env: Mapping[str, str]) -> bool:
    """Whether the user's home has a configuration for every launch."""
    cache = env.get("XDG_CACHE_HOME", "~/.cache")
    home = os.path.expanduser(env.get("HF_HOME", os.path.join(cache, "huggingface")))
    names = ("default_config.yaml", "default_config.json")
    return any(os.path.isfile(os.path.join(home, "accelerate", name)) for name in names)


def _deepspeed_options(args: Sequence[str], env: Mapping[str, str]) -> list[str]:
    met = _nodes(env)
    options = [f"--master_port={env['MASTER_PORT']}"]
    counts = met["container_slot_counts"]
    if len(counts) > 1:
        # Named by their numbers: two nodes may have one address (a cluster on one machine).
        hosts = f"{env['DETSLURM_PREEMPT_FLAG']}-hosts"  # the agent removes it with its flag
        with open(hosts, "w") as file:
            file.writelines(f"node{n} slots={count}\n" for n, count in enumerate(counts))
        options += [f"--hostfile={hosts}", "--no_ssh", f"--node_rank={met['container_rank']}"]
        options += [f"--master_addr={env['MASTER_ADDR']}"]
    chosen = _has(args, "--num_gpus", "--num_accelerators", "-i", "--include", "-e", "--exclude")
    if not chosen and len(counts) == 1 and not _has_gpus(env):
        options += [f"--num_gpus={counts[0]}"]  # the slots are CPUs, which it doesn't count
    return options


def _nodes(env: Mapping[str, str]) -> dict[str, Any]:
    met: dict[str, Any] = json.loads(env["DETSLURM_RENDEZVOUS"])
    return met


def _has_gpus(env: Mapping[str, str]) -> bool:
    return any(env.get(name) for name in _DEVICES)


def _value(args: Sequence[str], option: str) -> str:
    """The value that the arguments give an option, as `--option=value` or in two words."""
    for n, word in enumerate(args):
        if word == option:
            return "".join(args[n + 1 : n + 2])
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def _has(args: Sequence[str], *options: str) -> bool:
    return any(word.startswith(options) for word in args)


def guard_signals(flag: str) -> None:
    """Let no preemption's signal reach the handlers of this process, now or later."""
    fd = os.open(flag, os.O_RDONLY | os.O_CLOEXEC)
    install = signal.signal

    def is_preemption() -> bool:
        deadline = time.monotonic() + _LONGEST_DELAY
        while os.pread(fd, 1, 0) in (b"", b"\0"):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def guarded(number: int, handler: Any) -> Any:
        if number not in _SIGNALS or handler == signal.SIG_IGN:
            return install(number, handler)

        def handle(number: int, frame: Any) -> None:
            if is_preemption():
                return
            if callable(handler):
                handler(number, frame)
            elif number in (signal.SIGTERM, signal.SIGINT):
                install(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            # Others are sent to a whole step so that the ranks show where they are.

        return install(number, handle)

    for number in _SIGNALS:
        guarded(number, signal.getsignal(number))
    signal.signal = guarded  # type: ignore[assignment]


def begin() -> None:
    """Adapt this process, if it is a launcher."""
    with open("/proc/self/cmdline") as file:
        command = file.read().split("\0")
    name = launcher_name(sys.argv, command)
    if name in _TORCH + _ACCELERATE + _DEEPSPEED + _GUARDED_ONLY:
        sys.argv[:] = with_placement(name, sys.argv, os.environ)
        if name in _ACCELERATE and not _has_gpus(os.environ):
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # else its ranks don't meet
        guard_signals(os.environ["DETSLURM_PREEMPT_FLAG"])
