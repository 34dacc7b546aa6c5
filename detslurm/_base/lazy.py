"""Names of a package that are loaded on first use: most processes need two or three of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__`; `homes` has each module's names, by its name below the package.

    A module of another package has its full name there.
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        home = modules[name]
        return getattr(
            import_module(home if home.startswith("detslurm.") else f"{package}.{home}"), name
        )

    return load
