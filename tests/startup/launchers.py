"""Launchers of ranks without what they import and never use on CPUs: they start processes, and
wait."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.metadata import version
from types import ModuleType


def lighten_deepspeed() -> None:
    """Let DeepSpeed's launcher import its own modules, which name torch's version, and no torch."""
    found = PathFinder.find_spec("deepspeed")
    if found is None or not found.submodule_search_locations:
        return
    (place,) = found.submodule_search_locations
    torch = ModuleType("torch")
    torch.__version__ = version("torch")  # type: ignore[attr-defined]
    packages = {"deepspeed": place, "deepspeed.utils": f"{place}/utils"}
    for name, path in packages.items():
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [path]
    sys.modules["torch"] = torch

    from deepspeed.utils.logging import logger, set_log_level_from_string
    from deepspeed.utils.numa import get_numactl_cmd

    wanted = (logger, set_log_level_from_string, get_numactl_cmd)
    names = ("logger", "set_log_level_from_string", "get_numactl_cmd")
    vars(sys.modules["deepspeed.utils"]).update(zip(names, wanted, strict=True))
