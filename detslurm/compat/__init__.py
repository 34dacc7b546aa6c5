"""`import determined` inside detslurm jobs: code written for Determined runs as it is.

`determined`, `determined.core`, `determined.launch...`, `determined.pytorch...`,
`determined.searcher`, `determined.experimental` are other names of detslurm's own modules: the same
module objects, so classes are identical whichever name imported them. A name that detslurm doesn't
have raises an `ImportError` that lists the existing names.

How it gets into a job: the node agent puts one directory, `onpath/`, at the end of PYTHONPATH. It
holds nothing but a package called `determined`, which on its first import looks whether the
environment has a real one. If so it steps aside and the real one is loaded; if not it calls
`install()`. A process that never imports `determined` pays nothing. `DETSLURM_COMPAT` (in
`environment.environment_variables`, or in the shell for the runs by hand) decides:

- unset or `auto`: a real `determined` wins, wherever it is installed;
- `force`: detslurm wins over an installed one (not over a `determined/` beside the script);
- `off`: nothing is put on the path.

Outside jobs nothing is active but for the code of a checkpoint that is loaded; `python -m
detslurm.compat SCRIPT [ARGS...]` runs a script (or `-m MODULE`) the way a job would. docs/compat.md
lists what differs from Determined.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from detslurm._base import contract

__all__ = ["DIRECTORY", "install", "standing_in", "with_determined"]

DIRECTORY = Path(__file__).with_name("onpath")
"""The directory that PYTHONPATH needs for `import determined`."""


def with_determined(env: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Python resolves `determined`, by its `DETSLURM_COMPAT`.

    Raises `ValueError` for a mode that doesn't exist.
    """
    mode = env.get(contract.COMPAT) or "auto"
    ours = str(DIRECTORY)
    before = env.get("PYTHONPATH")
    path = [p for p in before.split(os.pathsep) if p != ours] if before else []
    if mode == "auto":
        path = [*path, ours]
    elif mode == "force":
        path = [ours, *path]
    elif mode != "off":
        raise ValueError(f"{contract.COMPAT}={mode!r} is none of auto, force, off")
    return {**env, "PYTHONPATH": os.pathsep.join(path)} if path or before else dict(env)


def install() -> ModuleType:
    """Make `determined` a name of detslurm in this process; returns the module that it names."""
    from detslurm.compat._finder import AliasFinder

    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder())
    sys.modules["determined"] = sys.modules["detslurm"]  # our parent, which is always there
    return sys.modules["determined"]


@contextmanager
def standing_in() -> Iterator[None]:
    """Inside the block `determined` is detslurm. The real package is back afterwards; without
    one the name stays."""
    theirs = {name: module for name, module in sys.modules.items() if _is_determined(name)}
    if theirs.get("determined") is sys.modules["detslurm"]:
        yield
        return
    is_there = bool(theirs) or find_spec("determined") is not None
    for name in theirs:
        del sys.modules[name]
    install()
    try:
        yield
    finally:
        if is_there:
            _uninstall()
            sys.modules.update(theirs)


def _uninstall() -> None:
    from detslurm.compat._finder import AliasFinder

    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, AliasFinder)]
    for name in [name for name in sys.modules if _is_determined(name)]:
        del sys.modules[name]


def _is_determined(name: str) -> bool:
    return name.partition(".")[0] == "determined"
