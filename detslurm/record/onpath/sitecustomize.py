"""Python imports this at its start in jobs with `record`; then it runs the site's own one.

It stands by itself: the Python that imports it need not have detslurm installed.
"""

from __future__ import annotations

import os
import sys


def _begin() -> None:
    try:
        import _detslurm_record  # type: ignore[import-not-found]

        _detslurm_record.install()
    except Exception:
        pass  # a script must run without its metrics rather than not at all


def _run_next() -> None:
    """Run the sitecustomize that Python would have found without this directory."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (few imports)
    # Children get the directory by PYTHONPATH. This process has what it needs, and code that
    # imports sitecustomize shall find its own.
    sys.path[:] = [place for place in sys.path if os.path.abspath(place) != here]  # noqa: PTH100
    spec = PathFinder.find_spec(__name__, sys.path)
    if spec is None or spec.loader is None:
        return
    module = sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(module)


_begin()
_run_next()
