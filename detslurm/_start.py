"""Starts a module from the store's module cache: `python -PS _start.py MODULE EXPERIMENT ...`.

A thousand nodes start at once, and each import asks the shared file system a dozen times for names.
Here one file is opened instead, which a submission wrote (`_module_cache`). Where it does not fit
this Python and this installation, MODULE is run as `python -P -m` does. Nothing is imported here
but what the interpreter has in itself.
"""

# Importlib as the interpreter has it in itself; importlib.machinery is a file.
import _frozen_importlib_external as _importlib
import marshal
import os
import sys

TYPE_CHECKING = False  # typing is a file
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

Stamp = tuple[str, int, int]  # path, modification time in ns, size
Entry = tuple[str, list[str] | None, bytes | None]  # origin, a package's directories, code
Cache = tuple[list[Stamp], dict[str, Entry]]


class _CachedLoader(_importlib.SourceFileLoader):
    """Of a module in Python, whose source is read for tracebacks alone."""

    def __init__(self, name: str, origin: str, code: bytes) -> None:
        super().__init__(name, origin)
        self._code = code

    def get_code(self, fullname: str) -> "CodeType":
        code: CodeType = marshal.loads(self._code)
        return code


class CachedModules:
    """Finds what the cache has, before any directory is searched.

    A module of an editable installation is looked at first: one that has changed since is left to
    Python, so that no process mixes old code with new.
    """

    def __init__(self, modules: dict[str, Entry], stamps: list[Stamp]) -> None:
        self._modules, self._editable = modules, editable(stamps)

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """As finders of importlib do."""
        found = self._modules.get(name)
        if found is None:
            return None
        origin, locations, code = found
        known = self._editable.get(origin)
        if known is not None and not is_unchanged([known]):
            return None
        return _importlib.spec_from_file_location(
            name,
            origin,
            loader=_importlib.ExtensionFileLoader(name, origin)
            if code is None
            else _CachedLoader(name, origin, code),
            submodule_search_locations=locations,
        )


class SitePackages:
    """Comes last, for what is found nowhere else: adds the site-packages that -S has left out."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """As finders of importlib do."""
        if name in sys.stdlib_module_names or name == "org":
            return None  # modules of other systems, such as msvcrt; and of Jython, for `copy`
        sys.meta_path.remove(self)
        import site

        site.main()
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        return next((spec for spec in specs if spec is not None), None)


def cache_path(root: str) -> str:
    """Where a store has the modules of this Python and this installation, for this user."""
    package = os.path.dirname(os.path.abspath(__file__))
    tail = package.replace(os.sep, "%")[-150:]
    name = f"module-cache-{sys.implementation.cache_tag}-{os.geteuid()}-{tail}"
    return os.path.join(root, name)


def read_cache(path: str) -> Cache | None:
    """Stamps of the sources and modules by name; None if the cache is not for this process."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None  # it is code, and somebody else may have written it
            version, stamps, modules = marshal.loads(file.read())
    except (OSError, ValueError, EOFError, TypeError):
        return None
    return (stamps, modules) if version == sys.version else None


def stamp(path: str) -> Stamp:
    """What changes when a file is installed again."""
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size


def editable(stamps: list[Stamp]) -> dict[str, Stamp]:
    """Those of files that may change one by one, by path: all that no installer has put there."""
    return {known[0]: known for known in stamps if "-packages" + os.sep not in known[0]}


def is_unchanged(stamps: list[Stamp]) -> bool:
    """Whether these files are as they were when the cache was written."""
    try:
        return all(stamp(known[0]) == known for known in stamps)
    except OSError:
        return False


def command(module: str) -> list[str]:
    """What starts a module from the cache, or without it if an upgrade took this file away."""
    if os.path.exists(__file__):
        return [sys.executable, "-PS", __file__, module]
    return [sys.executable, "-P", "-m", module]


def main(module: str, experiment: str, *words: str) -> None:
    """Run `module`, from the cache if there is one."""
    found = read_cache(cache_path(os.path.dirname(os.path.dirname(experiment))))
    # One file for each distribution: an upgrade has replaced it with all others of it.
    if found is None or not is_unchanged(found[0][:2]):
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, experiment, *words])
    sys.meta_path.insert(0, CachedModules(found[1], found[0]))
    sys.meta_path.append(SitePackages())
    import importlib

    sys.exit(importlib.import_module(module).main(sys.argv[2:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
