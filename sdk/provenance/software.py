"""The Python that trains, and its packages, by the names of files: nothing is imported or run.

Each installed package has a directory named after it and its version; to list their few parents
costs less than to read the description of each package, on a shared file system above all.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from detslurm.store.provenance import Software

LIMIT: Final = 2.0
"""Seconds that another Python has to answer."""

_QUESTION: Final = """\
import json, platform, sys
print(json.dumps([platform.python_version(), sys.executable, sys.prefix, sys.path[1:]]))
"""
_INSTALLED = re.compile(r"(.+?)-(\d[^-]*)(?:-py\d.*)?\.(?:dist|egg)-info")
_UNVERSIONED = re.compile(r"([^-]+)\.egg-(?:info|link)")
_OF_CONDA = re.compile(r"(.+)-([^-]+)-[^-]+\.json")
_SEPARATORS = re.compile(r"[-_.]+")


class _Python(NamedTuple):
    version: str
    executable: str
    prefix: str
    path: Sequence[str]


def software_of(
    python: str | None, modules: Iterable[str] = (), env: Mapping[str, str] = os.environ
) -> Software:
    """Return the software of a Python.

    Args:
        python: The path of the interpreter; None for the Python that runs this.
        modules: The environment modules that the jobs load beyond those that are loaded here.
        env: The environment.
    """
    loaded = [*filter(None, env.get("LOADEDMODULES", "").split(":")), *modules]
    names = tuple(dict.fromkeys(loaded))
    try:
        found = _this_python(env) if python is None else _asked(python, env)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = "did not answer" if isinstance(error, subprocess.TimeoutExpired) else "failed"
        return Software(
            executable=python, modules=names, problem=f"its packages are unknown: {python} {why}"
        )
    packages = installed_packages(found.path)
    return Software(
        python=found.version,
        executable=found.executable,
        prefix=found.prefix,
        conda=_conda_name(found.prefix, env),
        packages=packages,
        conda_packages=_conda_packages(found.prefix, packages),
        modules=names,
    )


def _this_python(env: Mapping[str, str]) -> _Python:
    import platform

    # What users put in PYTHONPATH comes first for their code, and last for this process.
    given = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]
    return _Python(platform.python_version(), sys.executable, sys.prefix, [*given, *sys.path])


def _asked(python: str, env: Mapping[str, str]) -> _Python:
    """The answer of another interpreter. Raises `OSError`, `ValueError` or `SubprocessError`."""
    done = subprocess.run(
        [python, "-c", _QUESTION],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=LIMIT,
        check=True,
    )
    return _Python(*json.loads(done.stdout))


def installed_packages(path: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages in these directories by name, "" where unknown.

    Args:
        path: The directories in which Python searches, in its order: the first counts.
    """
    found: dict[str, str] = {}
    for folder in dict.fromkeys(filter(None, path)):
        for entry in _names_in(folder):
            if match := _INSTALLED.fullmatch(entry):
                found.setdefault(_normal(match[1]), match[2])
            elif match := _UNVERSIONED.fullmatch(entry):
                found.setdefault(_normal(match[1]), "")
    return dict(sorted(found.items()))


def _normal(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


def _conda_name(prefix: str, env: Mapping[str, str]) -> str | None:
    same = env.get("CONDA_PREFIX", "").rstrip("/") == prefix.rstrip("/")
    return env.get("CONDA_DEFAULT_ENV") if same else None


def _conda_packages(prefix: str, packages: Mapping[str, str]) -> dict[str, str]:
    """Those that are not Python's."""
    entries = map(_OF_CONDA.fullmatch, _names_in(f"{prefix}/conda-meta"))
    found = {match[1]: match[2] for match in entries if match}
    return {name: found[name] for name in sorted(found) if _normal(name) not in packages}


def _names_in(folder: str) -> list[str]:
    with suppress(OSError):  # an archive, a name that is not there, a closed directory
        return os.listdir(folder)  # noqa: PTH208 (pathlib takes longer)
    return []
