"""Maps Determined's modules to detslurm's."""

from __future__ import annotations

ROOT = "determined"

# Determined's package -> ours.
PACKAGES = {
    "core": "core",
    "errors": "errors",
    "experimental": "experimental",
    "keras": "keras",
    "launch": "launch",
    "pytorch": "pytorch",
    "searcher": "searcher",
    "tensorboard": "experimental.tensorboard",
    "transformers": "transformers",
}


def ours(name: str) -> str | None:
    """The name of the module of ours that `determined.x.y` stands for, whether it exists or not."""
    root, _, rest = name.partition(".")
    package, dot, tail = rest.partition(".")
    if root != ROOT or package not in PACKAGES:
        return None
    return f"detslurm.{PACKAGES[package]}{dot}{tail}"
