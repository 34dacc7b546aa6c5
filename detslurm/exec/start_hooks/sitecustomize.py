"""Python imports this at its start; it begins a run's hooks, then runs the site's own one.

It stands by itself: the Python that imports it need not have detslurm installed.
"""

import os
import sys


def _begin(name: str) -> None:
    try:
        __import__(f"_detslurm_{name}").begin()
    except Exception as error:  # the user's program starts whatever goes wrong here
        print(f"detslurm: the start hook {name!r} failed: {error!r}", file=sys.stderr)


def _run_next() -> None:
    """Run the sitecustomize that Python would have found without this directory."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (few imports)
    at = [os.path.abspath(folder) for folder in sys.path].index(here)  # noqa: PTH100
    # Hooks that stand before this directory have run. Children get it by PYTHONPATH. This process
    # has what it needs, and code that imports sitecustomize finds its own.
    del sys.path[at]
    spec = PathFinder.find_spec("sitecustomize", sys.path[at:])
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


for _name in filter(None, os.environ.get("DETSLURM_START_HOOKS", "").split(",")):
    _begin(_name)
_run_next()
