"""DeepSpeed training: write a `DeepSpeedTrial`, and the `Trainer` runs, saves and resumes it.

Needs the extra `detslurm[deepspeed]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detslurm._base.lazy import lazy_names

if TYPE_CHECKING:
    from detslurm.pytorch.deepspeed._config import overwrite_deepspeed_config
    from detslurm.pytorch.deepspeed._context import DeepSpeedTrialContext
    from detslurm.pytorch.deepspeed._init import init
    from detslurm.pytorch.deepspeed._mpu import (
        ModelParallelUnit,
        make_data_parallel_mpu,
        make_deepspeed_mpu,
    )
    from detslurm.pytorch.deepspeed._trainer import Trainer
    from detslurm.pytorch.deepspeed._trial import DeepSpeedTrial

__all__ = [
    "DeepSpeedTrial",
    "DeepSpeedTrialContext",
    "ModelParallelUnit",
    "Trainer",
    "init",
    "make_data_parallel_mpu",
    "make_deepspeed_mpu",
    "overwrite_deepspeed_config",
]

_HOMES = {
    "_config": ("overwrite_deepspeed_config",),
    "_context": ("DeepSpeedTrialContext",),
    "_init": ("init",),
    "_mpu": ("ModelParallelUnit", "make_data_parallel_mpu", "make_deepspeed_mpu"),
    "_trainer": ("Trainer",),
    "_trial": ("DeepSpeedTrial",),
}
__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
