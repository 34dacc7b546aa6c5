"""DeepSpeed's configuration in these tests; importing it imports no DeepSpeed."""

from __future__ import annotations

from typing import Any

MICRO = 4


def config(stage: int = 0, dtype: str = "fp32", accumulate: int = 2) -> dict[str, Any]:
    """A configuration of DeepSpeed; Adam is torch's own, so that nothing is compiled."""
    made: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_accumulation_steps": accumulate,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 6, "warmup_max_lr": 0.01}},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    if dtype != "fp32":
        made[dtype] = {"enabled": True}
    return made
