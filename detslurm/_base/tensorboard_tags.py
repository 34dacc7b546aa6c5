"""How TensorBoard names metrics: by group, or as Determined does."""

from __future__ import annotations

import os

from detslurm._base import contract


def tensorboard_tag(group: str, name: str) -> str:
    """The tag of a metric: `training/loss`, or `Determined/loss` and `Determined/val_loss` where
    the environment asks for Determined's tags. Slashes separate the parts of a nested name."""
    if os.environ.get(contract.TENSORBOARD_TAGS) != "determined":
        return f"{group}/{name}"
    if group == "training":
        return f"Determined/{name}"
    if group != "validation":
        return f"Determined/{group}_{name}"
    return f"Determined/{name if name.startswith('val') else f'val_{name}'}"
