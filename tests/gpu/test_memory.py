"""A GPU whose memory is full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from detslurm.pytorch import Batch
from tests.pytorch.fitting import fit
from tests.pytorch.trials import Regression


@pytest.mark.parametrize("method", ["train_batch", "evaluate_batch"])
def test_it_is_named_with_what_helps(root: Path, gpu: torch.device, method: str) -> None:
    """In training and in a validation; the process can train on."""

    class TooLarge(Regression):
        pass

    def fill(trial: Any, *_: Any) -> Any:
        total = torch.cuda.get_device_properties(trial.context.device).total_memory
        return torch.empty(2 * total, dtype=torch.uint8, device=trial.context.device)

    setattr(TooLarge, method, fill)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory") as caught:
        fit(TooLarge, max_length=Batch(1))
    assert any(note.startswith("CUDA out of memory: a smaller") for note in caught.value.__notes__)
    assert len(fit(Regression, max_length=Batch(2)).losses) == 2
