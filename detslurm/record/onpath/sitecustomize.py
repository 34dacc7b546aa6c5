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
    places = [os.path.abspath(place) for place in sys.path]  # noqa: PTH100
    # Another start hook may stand before this directory, and has already run.
    behind = sys.path[places.index(here) + 1 :]
    # Children get the directory by PYTHONPATH. This process has what it needs, and code that
    # imports sitecustomize shall find its own.
    del sys.path[places.index(here)]
    spec = PathFinder.find_spec(__name__, behind)
    if spec is None or spec.loader is None:
        return
    module = sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(module)


_begin()
_run_next()
