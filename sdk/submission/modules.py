"""Reads Python code without running it: its place, and its definitions."""

from __future__ import annotations

import ast
import importlib.util
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path
from pkgutil import iter_modules

import detslurm

_BINARY = (".pyc", *EXTENSION_SUFFIXES)
# Code that has these may bind any name.
_DYNAMIC = frozenset({"exec", "eval", "globals", "locals", "vars", "setattr", "__getattr__"})


def module_file(module: str, files: Mapping[str, Path], *, run: bool) -> str | None:
    """The name of the file among `files` that has a module; `run`: as `python -m` runs it."""
    base = module.replace(".", "/")
    own = [f"{base}{suffix}" for suffix in (".py", *_BINARY)]
    package = f"{base}/__main__.py" if run else f"{base}/__init__.py"
    return next((name for name in (package, *own) if name in files), None)


def covers(module: str, files: Mapping[str, Path]) -> bool:
    """Whether `files` have the top-level package of a module, so that no other place counts."""
    top = module.partition(".")[0]
    return module_file(top, files, run=False) is not None


def exists(module: str, *, run: bool = False) -> bool:
    """Whether this Python finds a module, or that is unknown; its parents aren't imported. `run`:
    whether `python -m` does, to which a package is its `__main__`."""
    try:
        spec = _spec(module)
        if run and spec is not None and spec.submodule_search_locations is not None:
            spec = _spec(f"{module}.__main__")
    except (AttributeError, ImportError, ValueError):
        return True
    return spec is not None


def lacks_mpi(package: str) -> bool:
    """Whether an installed package has libraries for torch and none of them calls MPI."""
    spec = PathFinder.find_spec(package)
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    found = [file for folder in folders for file in Path(folder).glob("torch/mpi_lib*.so")]
    return bool(found) and not any(b"MPI_Init_thread" in file.read_bytes() for file in found)


def has_determined() -> bool:
    """Whether Determined itself is installed, not only the stand-in of this package."""
    spec = PathFinder.find_spec("determined")
    ours = Path(detslurm.__file__).parent
    return spec is not None and not Path(spec.origin or "").is_relative_to(ours)


def is_command(module: str) -> bool:
    """Whether the docstring of a module of ours shows it as a command."""
    spec = _spec(module)
    if spec is None or spec.origin is None:
        return False
    return f"    python3 -m {module} " in Path(spec.origin).read_text()


def below(package: str) -> list[str]:
    """The names of the modules in a package of ours."""
    spec = _spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return sorted(module.name for module in iter_modules(folders or ()))


def _spec(module: str) -> ModuleSpec | None:
    names = module.split(".")
    spec = importlib.util.find_spec(names[0])
    for end in range(2, len(names) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = _spec_below(".".join(names[:end]), spec)
    return spec


def _spec_below(name: str, parent: ModuleSpec) -> ModuleSpec | None:
    found = (
        finder.find_spec(name, parent.submodule_search_locations, None) for finder in sys.meta_path
    )
    return next((spec for spec in found if spec is not None), None)


def syntax_error(source: Path, name: str) -> str | None:
    """Why this Python can't compile a file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source.read_bytes(), name, "exec", dont_inherit=True)
    except SyntaxError as err:
        where = name if err.lineno is None else f"{name}, line {err.lineno}"
        return f"{where}: {type(err).__name__}: {err.msg}"
    except ValueError as err:  # such as null bytes
        return f"{name}: {err}"
    except (OSError, RecursionError, MemoryError):
        pass
    return None


def names_in(module: str) -> set[str] | None:
    """The names that the source of a module of ours mentions as its own; None if it has none. Names
    that it loads lazily stand in its source as text."""
    spec = _spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    nodes = list(ast.walk(ast.parse(Path(spec.origin).read_bytes())))
    texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return texts.union(*map(_bound, nodes))


def classes_without(source: Path, name: str) -> list[str] | None:
    """The classes that a file has if it certainly binds no `name`; None if it may."""
    try:
        nodes = list(ast.walk(ast.parse(source.read_bytes())))
    except (OSError, RecursionError, MemoryError):
        return None
    if any(name in _bound(node) or _binds_anything(node) for node in nodes):
        return None
    return [node.name for node in nodes if isinstance(node, ast.ClassDef)]


def _bound(node: object) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    elif isinstance(node, ast.alias):
        yield node.asname or node.name
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id


def _binds_anything(node: object) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _DYNAMIC
    return "*" in _bound(node) or not _DYNAMIC.isdisjoint(_bound(node))
