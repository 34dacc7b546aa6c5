"""The software of the Python that an experiment's entrypoint starts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from detslurm.store import loaded_modules, software_here, software_of
from detslurm.store.provenance import Software

LIMIT: Final = 2.0
"""Seconds that another Python has to answer."""

_QUESTION: Final = """\
import json, platform, sys
print(json.dumps([platform.python_version(), sys.prefix, sys.path[1:]]))
"""


def software_of_python(
    python: str | None, modules: Iterable[str] = (), env: Mapping[str, str] = os.environ
) -> Software:
    """Return the software of a Python; unknown parts are named, never an error.

    `python` is the path of the interpreter, None for the Python that runs this; `modules` are those
    that the jobs load beyond those that are loaded here.
    """
    if python is None:
        return software_here(modules, env)
    try:
        answer = _asked(python, env)
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        why = "did not answer" if isinstance(error, subprocess.TimeoutExpired) else "failed"
        return Software(
            modules=loaded_modules(modules, env),
            problem=f"its packages are unknown: {python} {why}",
        )
    return software_of(*answer, modules, env)


def _asked(python: str, env: Mapping[str, str]) -> tuple[str, str, Sequence[str]]:
    """Version, prefix and path of another interpreter. Raises `OSError`, `ValueError` or
    `SubprocessError`."""
    done = subprocess.run(
        [python, "-c", _QUESTION],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=LIMIT,
        check=True,
    )
    version, prefix, path = json.loads(done.stdout)
    return version, prefix, path
