"""Starts a module from a store's module cache.

`python -PS startup.py MODULE EXPERIMENT ...` takes it from the one file that a submission wrote
(`module_cache`), for a thousand nodes start at once. Where that does not fit this Python and this
installation, MODULE is run as `python -P -m` does. Python compiles this file at each start: the
rest is compiled in the cache, which begins with the code of `cached_modules`.
"""

# Nothing but what the interpreter has in itself.
import marshal
import os
import sys

TYPE_CHECKING = False  # typing is a file
if TYPE_CHECKING:
    from typing import Any

    from detslurm._base.cached_modules import Index

_HEADER = 16  # digits, before all else: how long the head is


def written(version: str, finder: bytes, index: "Index", code: bytes) -> bytes:
    """The content of a cache: for which Python, the code of `cached_modules`, and modules."""
    head = marshal.dumps((version, finder, index))
    return b"%0*d" % (_HEADER, len(head)) + head + code


def opened(path: str) -> "tuple[int, bytes, Index] | None":
    """A cache, open where its modules begin, its finder and index; None if it is not for this
    process."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            head = os.read(file, int(os.read(file, _HEADER)))
            version, finder, index = marshal.loads(head)
            if version == sys.version:
                return file, finder, index
        # Else it is code, and another user may have written it.
    except (OSError, ValueError, EOFError, TypeError, MemoryError):  # of a torn head
        pass
    os.close(file)
    return None


def cache_path(directory: str) -> str:
    """Where a store or a user's cache directory has the modules of this Python and this
    installation, for this user."""
    package = os.path.dirname(os.path.abspath(__file__))
    tail = package.replace(os.sep, "%")[-150:]
    name = f"module-cache-{sys.implementation.cache_tag}-{os.geteuid()}-{tail}"
    return os.path.join(directory, name)


def cache_of(experiment: str) -> str:
    """The cache of an experiment's store."""
    return cache_path(os.path.dirname(os.path.dirname(experiment)))


def command(module: str) -> list[str]:
    """The command that starts a module from the cache, or without it after an upgrade."""
    if os.path.exists(__file__):
        return [sys.executable, "-PS", __file__, module]
    return [sys.executable, "-P", "-m", module]


def main(module: str, experiment: str, *words: str) -> None:
    """Run `module`, from the cache if it exists."""
    found = opened(cache_of(experiment))
    if found is not None:
        file, finder, index = found
        names: dict[str, Any] = {"__name__": "detslurm._base.cached_modules"}
        exec(marshal.loads(finder), names)
        # Of an older version, after an upgrade: what `run` takes must stay as it is.
        names["run"](file, index, module)
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, experiment, *words])


if __name__ == "__main__":
    main(*sys.argv[1:])
