"""Functions as experiments: what of them is copied to the jobs, and how they are configured."""

from __future__ import annotations

import inspect
import json
import shlex
import site
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import ZipFile

# These are what `detslurm.launch.function` reads; that one runs in jobs and is not imported here.
_FILE = "functions.zip"
_PLACES = "places.json"
_FAILED = "^detslurm: the function raised an exception"

_DEFERRED = (
    inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction,
)  # fmt: skip

METRIC = "result"
"""Calls report no metric, and every search has a metric."""


@contextmanager
def packed(functions: Sequence[Any]) -> Iterator[Path]:
    """A private file with the functions, while the block lasts."""
    import cloudpickle

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _FILE
        path.touch(mode=0o600)
        with ZipFile(path, "w") as file:
            file.writestr(_PLACES, json.dumps(_places()))
            for number, function in enumerate(functions):
                file.writestr(str(number), cloudpickle.dumps(function))
        yield path


def _places() -> dict[str, Any]:
    installed = {sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages()}
    here = str(Path.cwd())
    paths = [str(Path(path or here).absolute()) for path in sys.path]
    own = [path for path in paths if not any(_is_in(path, place) for place in installed)]
    return {"directory": here, "path": list(dict.fromkeys([here, *own]))}


def _is_in(path: str, place: str) -> bool:
    return Path(path).is_relative_to(place)


def name_of(function: object) -> str:
    """The name of an experiment of this function."""
    plain = _plain(function)
    return str(getattr(plain, "__name__", type(plain).__name__))


def _plain(function: Any) -> Any:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return function


def entrypoint(kind: str, python: str | None = None) -> str:
    """The command that runs a packed function."""
    return f"{python or shlex.quote(sys.executable)} -m detslurm.launch.function {kind}"


def calls_config(count: int, name: str, python: str | None = None) -> dict[str, Any]:
    """The configuration of `count` calls: each is a trial."""
    # A grid is sampled from the end of its list.
    several = {"type": "categorical", "vals": list(reversed(range(count)))}
    return {
        "name": name,
        "entrypoint": entrypoint("call", python),
        "hyperparameters": {"function": several if count > 1 else 0},
        "searcher": {"name": "grid" if count > 1 else "single", "metric": METRIC},
        "log_policies": [{"name": "function", "pattern": _FAILED, "action": "cancel_retries"}],
        "slurm": {"slot_type": "cpu"},
    }


def training_config(function: Callable[..., Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose trials call the function. Raises TypeError for a function that would
    not train: it takes no context, or a call only makes a coroutine or a generator."""
    if any(kind(_plain(function)) for kind in _DEFERRED):
        raise TypeError(
            f"{name_of(function)} does nothing when it is called: it is a coroutine or a generator"
            " function; pass one that trains, and returns when it has"
        )
    with suppress(ValueError):  # it has no signature
        try:
            inspect.signature(function).bind(None)
        except TypeError as error:
            raise TypeError(
                f"{name_of(function)} is called with one argument, the Core API's context: {error}"
            ) from None
    known = {"name": name_of(function), **config}
    return {**known, "entrypoint": entrypoint("training")}
