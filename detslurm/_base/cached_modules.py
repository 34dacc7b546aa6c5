"""Imports from a module cache: one file, where each import asks the file system a dozen times.

Of a store's, which a submission wrote (`module_cache`), `startup` runs this file's code before
there is a package that could be imported: so it imports nothing at first but what the interpreter
has in itself. The `detslurm` command has one in its user's cache directory.
"""

# Importlib as the interpreter has it in itself; importlib.machinery is a file.
import _frozen_importlib_external as _importlib
import gc
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _thread import RLock

TYPE_CHECKING = False  # typing is a file
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType, ModuleType
else:
    ModuleType = type(sys)

# Modules that others use where they are installed: `copy` one of Jython's, msgspec one that costs
# as much as itself.
WITHOUT = ("org", "typing_extensions")

# Modules of other systems, which imports would search for, and one that loads a library of its own
# for the addresses of network cards.
ABSENT = ("_uuid", "_winapi", "msvcrt", "nt")

# Modules that others import and hardly ever use: they take a tenth of a runner's time to start.
LAZY = ("detslurm.store.log_lines", "ipaddress", "locale", "msgspec.inspect", "textwrap")
# Attributes that imports, and searches through all modules, read: set before a module runs.
_OF_EVERY_MODULE = ("__file__", "__loader__", "__name__", "__path__", "__spec__")

# A user's commands have these packages and the standard library in one file: not numpy or h5py,
# which are large, and mostly not in Python.
OF_COMMANDS = (
    *("click", "cloudpickle", "detslurm", "humanize", "msgspec", "pathspec", "rich", "submitit"),
    *("typing_extensions", "yaml"),
)

Stamp = tuple[str, int, int]  # path, modification time in ns, size
# Origin, a package's directories, the place and size of its code if it is Python.
Entry = tuple[str, list[str] | None, tuple[int, int] | None]
# The stamps of installed distributions (a file of each: an upgrade replaces all of one), and of
# editable files, which may change one by one; modules by name; how much code a start of each needs.
Index = tuple[list[Stamp], list[Stamp], dict[str, Entry], dict[str, int]]


class Cache:
    """A module cache, open: the index of its modules, and their code.

    Code that every start of `module` needs is read at once, the rest on demand.
    """

    def __init__(self, file: int, index: Index, module: str) -> None:
        self.distributions, self.editable, self.modules, starts = index
        self._file = file
        self._base = os.lseek(file, 0, os.SEEK_CUR)
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


class _LazyLoader(_CachedLoader):
    """Of a module that is run when something of it is asked for, by one thread; others wait."""

    def __init__(self, name: str, origin: str, code: "bytes | memoryview") -> None:
        super().__init__(name, origin, code)
        self._lock, self._has_begun = RLock(), False  # while it runs, it may ask itself

    def exec_module(self, module: ModuleType) -> None:
        """As loaders of importlib do."""
        module.__class__ = _LazyModule

    def run(self, module: ModuleType) -> None:
        """Run it, if that has not begun."""
        with self._lock:
            if not self._has_begun:
                self._has_begun = True
                try:
                    super().exec_module(module)
                except BaseException:
                    self._has_begun = False  # as an import that has failed is tried again
                    raise
                module.__class__ = ModuleType


class _LazyModule(ModuleType):
    """A module that has not run, or is running: also what it has by then may need the rest."""

    def __getattribute__(self, name: str) -> object:
        found = ModuleType.__getattribute__  # it will be no _LazyModule
        if name not in _OF_EVERY_MODULE:
            loader = found(self, "__loader__")
            assert isinstance(loader, _LazyLoader)
            loader.run(self)
        return found(self, name)


class CachedModules:
    """Finds what the cache has, before any directory is searched: the modules whose names begin
    with `prefix`.

    A module of an editable installation is looked at first: a changed module is left to
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
            loader: _importlib.FileLoader
            if place is None:
                loader = _importlib.ExtensionFileLoader(name, origin)
            else:
                kind = _LazyLoader if name in LAZY else _CachedLoader
                loader = kind(name, origin, self._cache.code(*place))
        except OSError:
            # The file is torn, or was replaced and its server has forgotten the old file.
            self.is_stale = True
            return None
        spec = ModuleSpec(name, loader, origin=origin)
        spec.submodule_search_locations = locations
        spec.has_location = True
        spec.cached = ""  # else importlib works out for long where a compiled file would be
        return spec


class SitePackages:
    """Comes last, for modules found nowhere else: adds the site-packages that -S has left out."""

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
    """The modules of a command: from its user's cache, if that fits."""

    def __init__(self) -> None:
        from detslurm._base.startup import cache_path

        self._before = set(sys.modules)
        self.path = cache_path(user_cache(os.environ))
        self.cache = _fitting(open_cache(self.path))
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


def user_cache(env: "Mapping[str, str]") -> str:
    """Where detslurm keeps what it can make again, for this user."""
    return os.path.join(env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "detslurm")


def open_cache(path: str, module: str = "") -> Cache | None:
    """The cache in a file; None if it is not for this process."""
    from detslurm._base.startup import opened

    found = opened(path)
    return None if found is None else _cache_in(found[0], found[2], module)


def _cache_in(file: int, index: Index, module: str) -> Cache | None:
    try:
        return Cache(file, index, module)
    except (OSError, ValueError, TypeError):  # of another version
        os.close(file)
        return None


def stamp(path: str) -> Stamp:
    """Values that change when a file is installed again."""
    status = os.stat(path)
    return path, status.st_mtime_ns, status.st_size


def is_unchanged(stamps: list[Stamp]) -> bool:
    """Whether these files are as they were when the cache was written."""
    try:
        return all(stamp(known[0]) == known for known in stamps)
    except OSError:
        return False


def share(experiment: str) -> None:
    """Let a user's program import this package from the cache, if it exists.

    Nothing else of it: what the program calls `queue` may be its own.
    """
    if any(type(finder).__name__ == CachedModules.__name__ for finder in sys.meta_path):
        return  # a runner or an agent, whose `startup` is `__main__`
    from detslurm._base.startup import cache_of

    found = _fitting(open_cache(cache_of(experiment)))
    if found is not None:
        found.read_all()  # programs close files that they don't know
        sys.meta_path.insert(0, CachedModules(found, "detslurm."))


def _fitting(found: Cache | None) -> Cache | None:
    if found is not None and not is_unchanged(found.distributions):
        found.close()
        return None
    return found


def run(file: int, index: Index, module: str) -> None:
    """Run a module from the cache in a file and exit; return where it does not fit."""
    found = _fitting(_cache_in(file, index, module))
    if found is None:
        return
    sys.meta_path.insert(0, CachedModules(found))
    sys.meta_path.append(SitePackages())
    sys.modules.update(dict.fromkeys((*ABSENT, *WITHOUT)))  # type: ignore[arg-type]
    # Modules are kept: no collection finds anything among them, and each looks at them all.
    gc.disable()
    __import__(module)
    gc.freeze()
    gc.enable()
    for name in WITHOUT:
        sys.modules.pop(name, None)  # packages that are imported later, as submitit, need them
    sys.exit(sys.modules[module].main(sys.argv[2:]))
