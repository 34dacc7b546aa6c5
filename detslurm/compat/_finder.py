"""The import hook: `determined.x` is the very module object of `detslurm.y`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import cast

from detslurm.compat._names import PACKAGES, ROOT, ours

Path = Sequence[str] | None


class AliasFinder(MetaPathFinder):
    """Finds `determined.x`. Goes first: others would load detslurm's files a second time."""

    def find_spec(
        self, fullname: str, path: Path, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The alias. Raises `ModuleNotFoundError` for what detslurm doesn't have."""
        if fullname == "detslurm.tensorboard":  # what `from determined import tensorboard` asks
            return _alias(fullname, "detslurm.experimental.tensorboard")
        if not fullname.startswith(f"{ROOT}."):
            return None
        real = ours(fullname)
        if real is None or not _exists(real):
            raise _missing(fullname)
        return _alias(fullname, real)


def _alias(name: str, real: str) -> ModuleSpec:
    found = find_spec(real)
    assert found is not None
    spec = ModuleSpec(name, AliasLoader(real), origin=found.origin)
    spec.submodule_search_locations = found.submodule_search_locations
    spec.has_location = found.has_location
    return spec


class AliasLoader(InspectLoader):
    """Loads a module by importing it under its real name."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The real module itself."""
        module = import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed again; the module keeps the identity that it had."""
        # Importing has just replaced the spec by the alias's.
        module.__spec__ = self._spec

    # For `python -m determined.x`: there the code runs as __main__.

    def get_code(self, fullname: str) -> CodeType | None:
        return self._real_loader().get_code(self._real)

    def get_source(self, fullname: str) -> str | None:
        return self._real_loader().get_source(self._real)

    def is_package(self, fullname: str) -> bool:
        return self._real_loader().is_package(self._real)

    def _real_loader(self) -> InspectLoader:
        spec = find_spec(self._real)
        assert spec is not None
        return cast(InspectLoader, spec.loader)


def _exists(name: str) -> bool:
    """Whether a module of ours is there; imports its parents only."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError as err:
        # A parent that is no package, or isn't there. Anything else is an error of the parent's.
        if err.name is None or err.name.partition(".")[0] not in ("detslurm", ROOT):
            raise
        return False


def _missing(name: str) -> ModuleNotFoundError:
    there = ", ".join(f"{ROOT}.{package}" for package in PACKAGES)
    return ModuleNotFoundError(
        f"no module {name!r}: here detslurm stands in for Determined, and has {there}", name=name
    )
