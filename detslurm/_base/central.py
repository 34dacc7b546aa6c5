"""An installation for all users of a cluster: code runs in Pythons of theirs, and finds ours there.

`packaging/module/install.sh` makes one. Its library has detslurm, and for each version of Python
the compiled modules that detslurm needs in a job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from detslurm._base import contract

# Their place in PATH is the system's business.
_OF_THE_SYSTEM = frozenset({"/bin", "/usr/bin", "/usr/local/bin"})


def library() -> str | None:
    """The directory in which code finds detslurm; None in an environment that has both."""
    # Not sys.prefix: it is another one in processes that start without the module `site`.
    found = f"{sys.executable.rpartition('/bin/')[0]}/{contract.CENTRAL_LIBRARY}"
    return found if os.path.isdir(found) else None  # noqa: PTH112 (each job's start asks)


def replacement() -> str | None:
    """The Python of the newest version beside this one, where this one was removed; else None."""
    try:
        os.stat(sys.executable)  # noqa: PTH116 (each job asks)
    except FileNotFoundError:
        pass
    except OSError:
        return None  # it may be there
    else:
        return None
    from pathlib import Path  # only here: few installations are removed while they run

    versions = Path(sys.executable).parents[2]
    found = versions.glob(f"*/{contract.CENTRAL_LIBRARY}/detslurm")
    names = (path.relative_to(versions).parts[0] for path in found)
    newest = max(names, key=_version, default=None)
    return None if newest is None else f"{versions}/{newest}/bin/python3"


def _version(name: str) -> list[tuple[bool, int, str]]:
    """In the order of `sort -V`."""
    parts = name.split(".")
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def first_in_path() -> str | None:
    """The first directory in the PATH of jobs: of the Python that submits, and in an installation
    for all of the user's own Python; None if that is the system's."""
    if library() is None:
        return sys.executable.rpartition("/")[0]
    import shutil  # only here: others pay nothing

    folder = (shutil.which("python3") or "").rpartition("/")[0]
    return folder if folder and folder not in _OF_THE_SYSTEM else None


def with_library(env: Mapping[str, str], place: str) -> dict[str, str]:
    """An environment whose Python finds detslurm in the library, which is at `place`."""
    given = [path for path in env.get("PYTHONPATH", "").split(":") if path and path != place]
    return {**env, "PYTHONPATH": ":".join([*given, place])}
