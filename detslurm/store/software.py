"""The software of this Python, by the names of files: nothing is imported or run.

Each installed package has a directory named after it and its version; to list their few parents
costs less than to read the description of each package, on a shared file system above all.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from detslurm.store.provenance import Software

_INSTALLED = re.compile(r"(.+?)-(\d[^-]*)(?:-py\d.*)?\.(?:dist|egg)-info")
_UNVERSIONED = re.compile(r"([^-]+)\.egg-(?:info|link)")
_OF_CONDA = re.compile(r"(.+)-([^-]+)-[^-]+\.json")
_SEPARATORS = re.compile(r"[-_.]+")


def software_here(modules: Iterable[str] = (), env: Mapping[str, str] = os.environ) -> Software:
    """The software of the Python that runs this.

    `modules` are the environment modules that jobs load beyond those that are loaded here.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    library = str(Path(os.__file__).parent)
    # The code's own directory, which the frozen code has, may look like an installed package.
    without = {
        *(str(Path.cwd()), str(Path(sys.argv[0] or "-").absolute().parent)),
        *(library, f"{library}/lib-dynload"),
    }
    # A user's PYTHONPATH comes first for the user's code, and last for detslurm's commands.
    given = env.get("PYTHONPATH", "").split(os.pathsep)
    path = [place for place in (*given, *sys.path) if place and place not in without]
    return software_of(version, sys.prefix, path, modules, env)


def software_of(
    version: str, prefix: str, path: Sequence[str], modules: Iterable[str], env: Mapping[str, str]
) -> Software:
    """The software of a Python, which searches the directories of `path` in their order.

    `prefix` is the directory of its environment; `modules` as for `software_here`.
    """
    packages = installed_packages(path)
    return Software(
        python=version,
        prefix=prefix,
        conda=_conda_name(prefix, env),
        packages=packages,
        conda_packages=_conda_packages(prefix, packages),
        modules=loaded_modules(modules, env),
    )


def loaded_modules(modules: Iterable[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the environment modules, in the order of loading."""
    return tuple(dict.fromkeys((*filter(None, env.get("LOADEDMODULES", "").split(":")), *modules)))


def installed_packages(path: Iterable[str]) -> dict[str, str]:
    """The versions of the packages in these directories by name, "" where unknown. Of several
    directories that have a package the first counts."""
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
