"""The pages of a store as an app of Open OnDemand, the web portal of many centres.

The portal runs it as its user, behind its own login; it needs a directory with a few files.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from detslurm._base import contract
from detslurm._base.node_files import local_kind
from detslurm.sdk.errors import LifecycleError

MANIFEST: Final = """\
---
name: detslurm
category: Interactive Apps
description: Experiments, learning curves and searches of your detslurm store
icon: fa://chart-line
"""

APPLICATION: Final = """\
from detslurm.look.app import application as show
from detslurm.sdk import Client

application = show(Client)
"""

# The portal's loader of applications asks for this module, which Python 3.12 has no more, before it
# knows of any directory of ours; later loaders do without.
IMP: Final = """\
import importlib.util
import sys


def load_source(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""

# The portal's own Python is older than ours, and its environment is not that of a login, nor of a
# module that names the place of our libraries.
_PYTHON = """\
#!/bin/sh
{exports}exec {python} "$@"
"""
# By what a file is known to be written here, whatever has changed in it since.
_OURS: Final = {
    "manifest.yml": r"^name: detslurm$",
    "passenger_wsgi.py": r"^from detslurm\.look\.app import ",
    "lib/imp.py": r"^def load_source\(name, path\):$",
    "bin/python": r'\A#!/bin/sh\n(.*\n)*exec .* "\$@"\n\Z',
}
_CARRIED = (contract.SITE, "SLURM_CONF")
_SEARCHED = ("LD_LIBRARY_PATH", "PYTHONPATH")


def default_directory() -> Path:
    """Return where the portal looks for a user's own app."""
    return Path.home() / "ondemand" / "dev" / "detslurm"


def doubts(directory: Path, store: Path | None, *, for_all: bool) -> list[str]:
    """Return why the portal might show nothing, in sentences.

    Its server is a machine of its own as a rule, and an app `for_all` runs as each of its users.
    Without a `store` it shows each user's own.
    """
    needed = [(directory, "the app"), (Path(sys.prefix), "this Python environment")]
    needed += [(store, "the store")] if store else []
    found = []
    for path, what in needed:
        if kind := local_kind(path):
            found.append(
                f"{what}, {path}, is on a disk of this machine ({kind}): where the portal runs on"
                " another machine, that can't see it"
            )
        if for_all and not _open_to_others(path):
            found.append(f"other users can't read {what}, {path}: the app shows them an error")
    return found


def _open_to_others(path: Path) -> bool:
    """Whether everybody may enter a directory and all above it."""
    try:
        return all(one.stat().st_mode & 0o001 for one in (path, *path.parents) if one.exists())
    except OSError:
        return False


def failure(directory: Path) -> str | None:
    """Return why an app that was written can't start, in a sentence; None if it can.

    It is tried as the portal starts it, without what the shell of a login has set.
    """
    start = [str(directory / "bin" / "python"), "-c", "import detslurm.look.app"]
    bare = {"PATH": os.defpath, "HOME": str(Path.home())}
    try:
        done = subprocess.run(
            start, env=bare, cwd=directory, capture_output=True, text=True, timeout=60,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    else:
        if done.returncode == 0:
            return None
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return f"the app can't start in the environment of a portal: {why}"


def install(directory: Path, store: Path | None, environ: Mapping[str, str]) -> bool:
    """Write the app, and return whether anything had to be written.

    It shows the `store` or, without one, that of each user who runs it.
    Files that are right already stay untouched. Of the environment it keeps the site profile, the
    place of Slurm, and where this Python finds modules and libraries. Raises `LifecycleError`, and
    writes nothing, if a file that would be replaced is not of this app, as the `bin/python` of an
    environment; `OSError` if it can't be written.
    """
    files = {
        "manifest.yml": (MANIFEST, 0o644),
        "passenger_wsgi.py": (APPLICATION, 0o644),
        "lib/imp.py": (IMP, 0o644),
        "bin/python": (_wrapper(store, environ, directory / "lib"), 0o755),
    }
    for name in files:
        _refuse_others(directory / name, _OURS[name])
    changed = [_write(directory / name, *content) for name, content in files.items()]
    if any(changed):
        restart = directory / "tmp" / "restart.txt"  # its time marks a running app as old
        restart.parent.mkdir(exist_ok=True)
        restart.touch()
    return any(changed)


def _wrapper(store: Path | None, environ: Mapping[str, str], library: Path) -> str:
    settings = {name: environ[name] for name in _CARRIED if environ.get(name)}
    for name in _SEARCHED:  # from another directory
        places = [place for place in environ.get(name, "").split(os.pathsep) if place]
        if places:
            here = Path.cwd()
            settings[name] = os.pathsep.join(
                place if place[0] in "/$" else f"{here}/{place}" for place in places
            )
    if store is not None:
        settings[contract.ROOT] = str(store)
    if sys.version_info >= (3, 12):
        searched = filter(None, (settings.get("PYTHONPATH"), str(library)))
        settings["PYTHONPATH"] = os.pathsep.join(searched)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in settings.items()]
    if squeue := shutil.which("squeue", path=environ.get("PATH")):
        lines.append(f'export PATH="$PATH":{shlex.quote(str(Path(squeue).parent))}\n')
    return _PYTHON.format(exports="".join(lines), python=shlex.quote(sys.executable))


def _refuse_others(path: Path, pattern: str) -> None:
    """Refuse to replace a file without the pattern, a link, and the Python that runs this."""
    if not path.is_symlink() and not path.exists():
        return
    # In place of the Python that runs this, a wrapper would start itself without end.
    runs_this = os.path.realpath(sys.executable) == os.path.realpath(path)
    text = "" if path.is_symlink() or runs_this else path.read_text(errors="replace")
    if not re.search(pattern, text, re.MULTILINE):
        raise LifecycleError(
            f"{path} is not a file of this app: nothing was written. Take another directory"
        )


def _write(path: Path, text: str, mode: int) -> bool:
    """Write a file unless it is there as it should be."""
    data = os.fsencode(text)
    if path.exists() and path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
        return False
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)  # whatever the umask: an administrator installs it for everybody
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.chmod(mode)
    draft.replace(path)
    return True
