"""Imports from a module cache: one file, where each import asks the file system a dozen times.

`python -PS _start.py MODULE EXPERIMENT ...` starts a module from the store's, which a submission
wrote (`_module_cache`), for a thousand nodes start at once. Where it does not fit this Python and
this installation, MODULE is run as `python -P -m` does. The `detslurm` command has one in its
user's cache directory. Nothing is imported here but what the interpreter has in itself.
"""

# Importlib as the interpreter has it in itself; importlib.machinery is a file.
import _frozen_importlib_external as _importlib
import gc
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False  # typing is a file
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType, ModuleType

# Modules that others use where they are installed: `copy` one of Jython's, msgspec one that costs
# as much as itself.
WITHOUT = ("org", "typing_extensions")

# Whose modules a user's commands have in one file, with the standard library's: not numpy or h5py,
# which are large, and mostly not in Python.
OF_COMMANDS = (
    *("click", "cloudpickle", "detslurm", "humanize", "msgspec", "pathspec", "rich", "submitit"),
    *("typing_extensions", "yaml"),
)

Stamp = tuple[str, int, int]  # path, modification time in ns, size
# Origin, a package's directories, the place and size of its code if it is Python.
Entry = tuple[str, list[str] | None, tuple[int, int] | None]

_HEADER = 16  # digits, before all else: how long the index is


class Cache:
    """A module cache, open: the index of its modules, and their code.

    What every start of `module` needs is read at once; the rest is read when it is asked for.
    """

    def __init__(self, file: int, module: str) -> None:
        self._file = file
        index = int(os.read(file, _HEADER))
        self._base = _HEADER + index
        version, distributions, editable, modules, starts = marshal.loads(os.read(file, index))
        if version != sys.version:
            raise ValueError(version)
        # A file of each: an upgrade replaces all of a distribution.
        self.distributions: list[Stamp] = distributions
        self.editable: list[Stamp] = editable  # files that may change one by one
        self.modules: dict[str, Entry] = modules
        self._start = memoryview(os.read(file, starts.get(module, 0)))

    def code(self, place: int, size: int) -> "bytes | memoryview":
        """The code of a module. Raises `OSError`."""
        found: bytes | memoryview = self._start[place : place + size]
        if len(found) < size:
            found = os.pread(self._file, size, self._base + place)
        if len(found) < size:
            raise OSError("the module cache is cut short")
        return found

    def read_all(self) -> None:
        """Read the code of all modules now, and leave no file open."""
        size = os.fstat(self._file).st_size - self._base
        self._start = memoryview(os.pread(self._file, size, self._base))
        self.close()

    def close(self) -> None:
        """No code is read any more."""
        os.close(self._file)
        self._file = -1


class _CachedLoader(_importlib.SourceFileLoader):
    """Of a module in Python, whose source is read for tracebacks alone."""

    def __init__(self, name: str, origin: str, code: "bytes | memoryview") -> None:
        super().__init__(name, origin)
        self._code = code

    def get_code(self, fullname: str) -> "CodeType":
        code: CodeType = marshal.loads(self._code)
        return code


class CachedModules:
    """Finds what the cache has, before any directory is searched: the modules whose names begin
    with `prefix`.

    A module of an editable installation is looked at first: one that has changed since is left to
    Python, so that no process mixes old code with new.
    """

    def __init__(self, cache: Cache, prefix: str = "") -> None:
        self._cache, self._prefix = cache, prefix
        self._editable = {known[0]: known for known in cache.editable}
        self.is_stale = False  # something was not there as the index has it

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """As finders of importlib do."""
        found = self._cache.modules.get(name)
        if found is None or not name.startswith(self._prefix):
            return None
        origin, locations, place = found
        known = self._editable.get(origin)
        if known is not None and not is_unchanged([known]):
            self.is_stale = True
            return None
        try:
            loader = (
                _importlib.ExtensionFileLoader(name, origin)
                if place is None
                else _CachedLoader(name, origin, self._cache.code(*place))
            )
        except OSError:
            self.is_stale = True
            return (
                None  # the file is torn, or was replaced and its server has forgotten the old one
            )
        spec = ModuleSpec(name, loader, origin=origin)
        spec.submodule_search_locations = locations
        spec.has_location = True
        spec.cached = ""  # else importlib works out for long where a compiled file would be
        return spec


class SitePackages:
    """Comes last, for what is found nowhere else: adds the site-packages that -S has left out."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """As finders of importlib do."""
        if name in sys.stdlib_module_names or name in WITHOUT:
            return None  # in the standard library those of other systems, such as msvcrt
        sys.meta_path.remove(self)
        import site

        site.main()
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        return next((spec for spec in specs if spec is not None), None)


class CommandModules:
    """The modules of a command: from its user's cache, if there is one that fits."""

    def __init__(self) -> None:
        self._before = set(sys.modules)
        self.path = cache_path(user_cache(os.environ))
        self.cache = _fitting(self.path)
        self._finder = CachedModules(self.cache) if self.cache is not None else None
        if self._finder is not None:
            sys.meta_path.insert(0, self._finder)

    def is_complete(self) -> bool:
        """Whether all that was imported is in the cache as it is now."""
        if self.cache is None or self._finder is None or self._finder.is_stale:
            return False
        lacking = sys.modules.keys() - self._before - self.cache.modules.keys()
        return not any(is_of_commands(name) for name in lacking)


def is_of_commands(name: str) -> bool:
    """Whether a module that is imported belongs in the cache of a user's commands."""
    top = name.partition(".")[0]
    if top not in OF_COMMANDS and top not in sys.stdlib_module_names:
        return False
    spec = getattr(sys.modules[name], "__spec__", None)  # typing.io has none
    # Neither built in nor from an archive.
    kinds = (_importlib.SourceFileLoader, _importlib.ExtensionFileLoader)
    return isinstance(getattr(spec, "loader", None), kinds)


def written(
    version: str,
    distributions: list[Stamp],
    editable: list[Stamp],
    modules: dict[str, Entry],
    code: bytes,
    starts: dict[str, int],
) -> bytes:
    """The content of a cache; `starts` has the bytes of the code that a start of a module needs."""
    index = marshal.dumps((version, distributions, editable, modules, starts))
    return b"%0*d" % (_HEADER, len(index)) + index + code


def user_cache(env: "Mapping[str, str]") -> str:
    """Where detslurm keeps what it can make again, for this user."""
    return os.path.join(env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "detslurm")


def cache_path(directory: str) -> str:
    """Where a store or a user's cache directory has the modules of this Python and this
    installation, for this user."""
    package = os.path.dirname(os.path.abspath(__file__))
    tail = package.replace(os.sep, "%")[-150:]
    name = f"module-cache-{sys.implementation.cache_tag}-{os.geteuid()}-{tail}"
    return os.path.join(directory, name)


def open_cache(path: str, module: str = "") -> Cache | None:
    """The cache in a file; None if it is not for this process."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return Cache(file, module)
        # Else it is code, and somebody else may have written it.
    except (OSError, ValueError, EOFError, TypeError):
        pass
    os.close(file)
    return None


def stamp(path: str) -> Stamp:
    """What changes when a file is installed again."""
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size


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


def share(experiment: str) -> None:
    """Let a user's program import this package from the cache, if there is one.

    Nothing else of it: what the program calls `queue` may be its own.
    """
    if any(type(finder).__name__ == CachedModules.__name__ for finder in sys.meta_path):
        return  # a runner or an agent, whose `_start` is `__main__`
    found = _fitting(_cache_of(experiment))
    if found is not None:
        found.read_all()  # programs close files that they don't know
        sys.meta_path.insert(0, CachedModules(found, "detslurm."))


def _cache_of(experiment: str) -> str:
    return cache_path(os.path.dirname(os.path.dirname(experiment)))


def _fitting(path: str, module: str = "") -> Cache | None:
    found = open_cache(path, module)
    if found is not None and not is_unchanged(found.distributions):
        found.close()
        return None
    return found


def main(module: str, experiment: str, *words: str) -> None:
    """Run `module`, from the cache if there is one."""
    found = _fitting(_cache_of(experiment), module)
    if found is None:
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, experiment, *words])
    sys.meta_path.insert(0, CachedModules(found))
    sys.meta_path.append(SitePackages())
    # Modules are kept: no collection finds anything among them, and each looks at them all.
    gc.disable()
    __import__(module)
    gc.freeze()
    gc.enable()
    sys.exit(sys.modules[module].main(sys.argv[2:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
