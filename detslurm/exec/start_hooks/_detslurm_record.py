"""Hooks that send the values that a script logs to detslurm's recorder.

They stand by themselves, and run in the script's Python. The script must not notice them: its calls
return and raise as without them, a fault of a hook is swallowed, and a value that the recorder does
not take at once is dropped and counted.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import wraps
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_CHANNEL, _FROM = "DETSLURM_RECORD", "DETSLURM_RECORD_FROM"
_LONGEST = 4000  # bytes of a line: up to PIPE_BUF, 4096, lines of several writers don't mix
_VALIDATION = ("val", "eval", "test")
# Of the variables by which launchers number their processes, the first that is set counts.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "HOROVOD_RANK", "SLURM_PROCID")
_LOCAL_RANKS = ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
_state = threading.local()
_dropped = 0
_RANK_SECONDS = 1.0
_known = (False, 0.0, 0)  # whether it is the chief, until when, and in which process


def begin() -> None:
    """Patch the chosen trackers, each right after its import."""
    chosen = os.environ.get(_FROM, "").split(",") if os.environ.get(_CHANNEL) else []
    patches = {name: act for source in chosen for name, act in _PATCHES.get(source, {}).items()}
    if patches:
        sys.meta_path.insert(0, _Finder(patches))
        import atexit

        atexit.register(_send_count)


class _Finder:
    """Lets the other finders find a module, and patches it after its execution."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        patch = self._patches.get(name)
        if patch is None:
            return None
        try:
            return self._found(name, path, target, patch)
        except Exception:
            return None  # the other finders raise it again, as without this finder

    def _found(self, name: str, path: Any, target: Any, patch: Any) -> Any:
        others = [getattr(finder, "find_spec", None) for finder in sys.meta_path if finder != self]
        found = (find(name, path, target) for find in others if find is not None)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the attribute of this one object, below
            execute(module)
            try:
                patch(module)
            except Exception:
                pass  # another version of the tracker: it works unrecorded

        loader.exec_module = exec_module
        return spec


# -- the trackers --------------------------------------------------------------------------------


def _after(owner: Any, name: str, send: Callable[..., None]) -> None:
    """Call `send` with the arguments after each call that returned."""
    original = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        _safely(send, *args, **kwargs)
        return result

    setattr(owner, name, call)


def _safely(act: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return act(*args, **kwargs)
    except Exception:
        return None


def _patch_writer(module: Any) -> None:
    def scalar(
        writer: Any, tag: str, scalar_value: Any, global_step: Any = None, *_: Any, **__: Any
    ) -> None:
        # Lightning's placeholder: at step 0, it would let each run replace the metrics before.
        if (tag, scalar_value) != ("hp_metric", -1):
            _send("tensorboard", global_step, {_named(writer, tag): scalar_value})

    def scalars(
        writer: Any,
        main_tag: str,
        tag_scalar_dict: Any,
        global_step: Any = None,
        *_: Any,
        **__: Any,
    ) -> None:
        values = {_named(writer, f"{main_tag}/{tag}"): v for tag, v in tag_scalar_dict.items()}
        _send("tensorboard", global_step, values)

    _after(module.SummaryWriter, "add_scalar", scalar)
    _after(module.SummaryWriter, "add_scalars", scalars)


def _named(writer: Any, tag: str) -> str:
    """The tag; with its directory's name where that alone shows that it belongs to validation."""
    place = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None) or ""
    folder = os.path.basename(os.path.normpath(str(place)))  # noqa: PTH119
    is_marked = any(part.lower().startswith(_VALIDATION) for part in tag.split("/"))
    return f"{folder}/{tag}" if folder.lower().startswith(_VALIDATION) and not is_marked else tag


def _patch_wandb(module: Any) -> None:
    original = module.Run.log

    @wraps(original)
    def log(run: Any, *args: Any, **kwargs: Any) -> Any:
        step = _safely(getattr, run, "step", None)  # before the call, which may count on
        result = original(run, *args, **kwargs)
        _safely(_send_history, step, *args, **kwargs)
        return result

    module.Run.log = log


def _send_history(counted: Any, data: Any, step: Any = None, *_: Any, **__: Any) -> None:
    values = dict(_flat(data))
    # Trainers log their own step beside the values, and leave W&B's to its count.
    own = [key for key in values if str(key).rpartition("/")[2] == "global_step"]
    given = values.pop(own[0]) if own else step
    _send("wandb", counted if given is None else given, values)


def _flat(data: Any, prefix: str = "") -> Any:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _patch_fluent(module: Any) -> None:
    """Note calls without a step, for which MLflow puts 0."""
    for name, position in (("log_metric", 2), ("log_metrics", 1)):
        setattr(module, name, _noting(getattr(module, name), position))


def _noting(original: Callable[..., Any], position: int) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        step = args[position] if len(args) > position else kwargs.get("step")
        _state.stepless = step is None
        try:
            return original(*args, **kwargs)
        finally:
            _state.stepless = False

    return call


def _patch_client(module: Any) -> None:
    def metric(
        _: Any,
        run_id: str,
        key: str,
        value: Any,
        timestamp: Any = None,
        step: Any = None,
        *__: Any,
        **___: Any,
    ) -> None:
        _send_metrics([(key, value, step)])

    def batch(_: Any, run_id: str, metrics: Any = (), *__: Any, **___: Any) -> None:
        _send_metrics([(one.key, one.value, one.step) for one in metrics])

    _after(module.MlflowClient, "log_metric", metric)
    _after(module.MlflowClient, "log_batch", batch)


def _send_metrics(metrics: Any) -> None:
    by_step: dict[Any, dict[str, Any]] = {}
    stepless = getattr(_state, "stepless", False)
    for key, value, step in metrics:
        if not key.startswith("system/"):  # what MLflow measures of the machine
            by_step.setdefault(None if stepless else step, {})[key] = value
    for step, values in by_step.items():
        _send("mlflow", step, values)


_PATCHES: dict[str, dict[str, Callable[[Any], None]]] = {
    "tensorboard": {
        "torch.utils.tensorboard.writer": _patch_writer,
        "tensorboardX.writer": _patch_writer,
    },
    "wandb": {"wandb.sdk.wandb_run": _patch_wandb},
    "mlflow": {
        "mlflow.tracking.fluent": _patch_fluent,
        "mlflow.tracking.client": _patch_client,
    },
}

# -- the channel ---------------------------------------------------------------------------------


def _send(source: str, step: Any, values: dict[Any, Any]) -> None:
    if _is_chief():
        numbers = {str(name): _number(value) for name, value in values.items()}
        _write(source, _number(step), {k: v for k, v in numbers.items() if v is not None})


def _is_chief() -> bool:
    """Whether this process has rank 0; known for a second, because looking takes long."""
    global _known
    now, pid = monotonic(), os.getpid()
    is_chief, until, of = _known
    if now > until or pid != of:
        is_chief = _has_rank_0()
        _known = (is_chief, now + _RANK_SECONDS, pid)
    return is_chief


def _has_rank_0() -> bool:
    """By torch, else by the variables; alone on its node, a process has it."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return bool(torch.get_rank() == 0)
    for name in _RANKS:
        if name in os.environ:
            return os.environ[name] == "0"
    return all(os.environ.get(name, "0") == "0" for name in _LOCAL_RANKS)


def _number(value: Any) -> float | None:
    """A number, an array or tensor of a single element; None of all else."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return None
    if isinstance(value, int):
        return value
    try:
        return float(value)
    except Exception:
        return None


def _write(source: str, step: Any, values: dict[str, Any]) -> None:
    """Write the values as one line, or as several where they are too long for one."""
    global _dropped
    if not values:
        return
    from json import dumps

    message = {"s": source, "k": step, "v": values, "d": _dropped}
    line = f"{dumps(message)}\n".encode()
    if len(line) > _LONGEST and len(values) > 1:
        half, items = len(values) // 2, list(values.items())
        _write(source, step, dict(items[:half]))
        _write(source, step, dict(items[half:]))
    elif len(line) <= _LONGEST and _put(line):
        _dropped = 0
    else:
        _dropped += len(values)


def _put(line: bytes) -> bool:
    # Opened for each line: a script may close all files that it does not know, or fork. Without a
    # reader opening fails at once, and a full pipe refuses the line: nothing here waits.
    try:
        fd = os.open(os.environ[_CHANNEL], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.write(fd, line) == len(line)
        finally:
            os.close(fd)
    except (OSError, KeyError):
        return False


def _send_count() -> None:
    """Report at the end the values dropped since the last line that went through."""
    if _dropped:
        _put(f'{{"s":"","k":null,"v":{{}},"d":{_dropped}}}\n'.encode())
