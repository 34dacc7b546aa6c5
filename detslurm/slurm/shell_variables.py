"""The submitting shell's input variables of sbatch, a part of what the user has asked for.

A later job of the experiment is submitted from another shell, or by a job: it gets the same ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIX = "SBATCH_"
_EXPORT = "SBATCH_EXPORT"

# Input variables of sbatch overrule the script's own lines: those of options that we always set.
_OVERRULING = frozenset(
    {
        "SBATCH_ARRAY_INX",
        "SBATCH_CLUSTERS",
        "SBATCH_CPUS_PER_TASK",
        "SBATCH_DEPENDENCY",
        "SBATCH_ERROR",
        "SBATCH_GPUS",
        "SBATCH_GPUS_PER_NODE",
        "SBATCH_GPUS_PER_TASK",
        "SBATCH_GRES",
        "SBATCH_JOB_NAME",
        "SBATCH_NODES",
        "SBATCH_NO_REQUEUE",
        "SBATCH_NTASKS",
        "SBATCH_NTASKS_PER_NODE",
        "SBATCH_OPEN_MODE",
        "SBATCH_OUTPUT",
        "SBATCH_REQUEUE",
        "SBATCH_SIGNAL",
        "SBATCH_TEST_ONLY",
        "SBATCH_WAIT",
    }
)


def exported_values(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """SBATCH_EXPORT where it gives variables values (`ALL,TOKEN=x`): these may be secrets, and
    others may read the record. Jobs hand it on to those that they submit."""
    value = environ.get(_EXPORT, "")
    return {_EXPORT: value} if "=" in value else {}


def shell_variables(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """NAME=value of sbatch's input variables that count, in the order of their names."""
    left_out = _OVERRULING | exported_values(environ).keys()
    names = sorted(name for name in environ if name.startswith(PREFIX))
    return tuple(f"{name}={environ[name]}" for name in names if name not in left_out)
