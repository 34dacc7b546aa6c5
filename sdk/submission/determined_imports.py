"""Find imports of Determined's modules and names that detslurm does not have."""

from __future__ import annotations

import ast
import difflib
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from detslurm.compat._names import ROOT, ours
from detslurm.sdk.submission import modules

_HEAVY = tuple(f"{ROOT}.{name}" for name in ("keras", "pytorch", "tensorboard", "transformers"))
_CLIENT = "determined.experimental.client"
# Module or name -> what takes its place.
_INSTEAD = {
    "determined.cli": "the command line is `detslurm`",
    "determined.common": f"use {_CLIENT}",
    "determined.deploy": "there is nothing to deploy",
    "determined.estimator": "use determined.core",
    "determined.exec": "use determined.launch",
    "determined.ExperimentConfig": "use determined.get_cluster_info().trial._config",
    "determined.LegacyTrial": "use determined.pytorch.PyTorchTrial",
    "determined.TrialContext": "use determined.pytorch.PyTorchTrialContext",
    "determined.TrialController": "use determined.pytorch.Trainer",
    "determined.keras.TFKerasTrial": "use determined.keras.DeterminedCallback",
    "determined.keras.TFKerasTrialContext": "use determined.keras.DeterminedCallback",
}


class MissingImport(NamedTuple):
    """An import that fails in a job."""

    line: int
    name: str
    instead: str
    certain: bool  # carried out at the start, with its failure handled nowhere


def missing_imports(source: Path) -> list[MissingImport]:
    """The imports in a file that ask Determined's packages for what detslurm lacks."""
    try:
        tree = ast.parse(source.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # others report it
    return [
        MissingImport(node.lineno, name, _instead(name), certain)
        for node, certain in _imports(tree, at_start=True)
        for name in _missing(node)
    ]


def _imports(
    tree: ast.AST, *, at_start: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, at_start
        elif not isinstance(node, ast.Try):  # its code handles the failure
            yield from _imports(node, at_start=False)


def _missing(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if _is_theirs(a.name) and not _module(a.name))
    elif not node.level and node.module and _is_theirs(node.module):
        if not _module(node.module):
            yield node.module
            return
        for alias in node.names:
            if not _has(node.module, alias.name):
                yield f"{node.module}.{alias.name}"


def _is_theirs(module: str) -> bool:
    return module == ROOT or module.startswith(f"{ROOT}.")


def _real(module: str) -> str | None:
    return "detslurm" if module == ROOT else ours(module)


def _module(module: str) -> bool:
    real = _real(module)
    return real is not None and modules.exists(real)


def _has(module: str, name: str) -> bool:
    if f"{module}.{name}" in _INSTEAD:
        return False
    if name == "*" or _module(f"{module}.{name}"):
        return True
    if module.startswith(_HEAVY):  # its source must do: importing it would load torch
        known = modules.names_in(str(_real(module)))
        return known is None or name in known
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that are deprecated
            return hasattr(import_module(str(_real(module))), name)
    except Exception:  # such as a store that can't be opened: the name leads somewhere
        return True


def _instead(name: str) -> str:
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        if (found := _INSTEAD.get(".".join(parts[:end]))) is not None:
            return found
    module = ".".join(parts[:-1])
    known = modules.names_in(str(_real(module))) if _module(module) else None
    close = difflib.get_close_matches(parts[-1], known or (), 1)
    return f"did you mean {module}.{close[0]}?" if close else "docs/compat.md lists what differs"
