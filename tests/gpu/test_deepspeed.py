"""Plain DeepSpeed on GPUs, by the launcher: its fused optimizer and ZeRO 0 to 3.

(The tests of DeepSpeedTrial on GPUs belong here, too.)
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.gpu.conftest import ON_CPU
from tests.gpu.launching import launched
from tests.gpu.test_ranks import Note, ranks_here


@pytest.mark.parametrize("which", ["one", "all"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero(
    device: torch.device, tmp_path: Path, record_property: Note, stage: int, which: str
) -> None:
    """It learns, and goes on from its checkpoint to the last bit, with the fused Adam."""
    if find_spec("deepspeed") is None:
        pytest.skip("GPU: deepspeed is not installed")
    count = ranks_here(which, record_property)
    accelerator = {"DS_ACCELERATOR": "cpu"} if ON_CPU else {}
    module = "tests.gpu.deepspeed_ranks"
    for rank in launched(count, module, str(stage), tmp_path / "out", **accelerator):
        assert rank["parts"] == rank["whole"]
        assert all(map(math.isfinite, rank["whole"]))
        assert rank["whole"][-2] < rank["whole"][0]
        assert rank["optimizer"] == ("AdamW" if ON_CPU else "FusedAdam")
        assert rank["device"].startswith(device.type)
