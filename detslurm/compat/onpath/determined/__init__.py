"""Determined's name, on the path of detslurm jobs: the real package if installed, else ours.

It stands by itself: the Python that imports it need not have detslurm installed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder


def _real_package() -> ModuleSpec | None:
    """The `determined` that would be found if this one were not on the path."""
    if os.environ.get("DETSLURM_COMPAT") == "force":
        return None
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    elsewhere = [p for p in sys.path if os.path.abspath(p) != here]  # noqa: PTH100
    for finder in sys.meta_path:
        spec = (
            PathFinder.find_spec(__name__, elsewhere)
            if finder is PathFinder
            else finder.find_spec(__name__, None)
        )
        # A folder of that name without code is no package, and other hooks may find this file.
        if spec is not None and spec.has_location and spec.origin != __file__:
            return spec
    return None


def _become_real(spec: ModuleSpec) -> None:
    module = importlib.util.module_from_spec(spec)
    sys.modules[__name__] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)


def _become_ours() -> None:
    try:
        from detslurm import compat
    except ModuleNotFoundError as err:
        if err.name != "detslurm":
            raise
        raise ModuleNotFoundError(
            f"this Python ({sys.executable}) has neither determined nor detslurm; a detslurm job's "
            "code needs detslurm installed in the environment that runs it",
            name=__name__,
        ) from None
    compat.install()


_spec = _real_package()
if _spec is None:
    _become_ours()
else:
    _become_real(_spec)
