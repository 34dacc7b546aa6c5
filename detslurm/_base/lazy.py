"""Names of a package that are loaded on first use: most processes need two or three of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`; `homes` has the module of each name, in the package or in full."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        home = homes[name]
        return getattr(
            import_module(home if home.startswith("detslurm.") else f"{package}.{home}"), name
        )

    return load
