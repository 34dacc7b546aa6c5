"""DeepSpeed on GPUs, by the launcher: its fused optimizer and ZeRO 0 to 3, plain and in a trial."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.gpu.conftest import ON_CPU
from tests.gpu.launching import Results, launched
from tests.gpu.test_ranks import Note, ranks_here


@pytest.mark.parametrize("which", ["one", "all"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero(
    device: torch.device, tmp_path: Path, record_property: Note, stage: int, which: str
) -> None:
    """DeepSpeed learns with its fused Adam, and goes on from a checkpoint to the last bit; a trial
    does what its own loop does, and goes on from either kind of checkpoint."""
    if find_spec("deepspeed") is None:
        pytest.skip("GPU: deepspeed is not installed")
    count = ranks_here(which, record_property)
    accelerator = {"DS_ACCELERATOR": "cpu"} if ON_CPU else {}
    module = "tests.gpu.deepspeed_ranks"
    ranks = launched(count, module, str(stage), tmp_path / "out", **accelerator)
    for rank in ranks:
        assert rank["parts"] == rank["whole"]
        assert all(map(math.isfinite, rank["whole"]))
        assert rank["whole"][-2] < rank["whole"][0]
        assert rank["optimizer"] == ("AdamW" if ON_CPU else "FusedAdam")
        assert rank["device"].startswith(device.type)
        trial = rank["trial"]
        assert trial["device"] == rank["device"]
        assert rank["whole"] == trial["losses"] == trial["at once"] == trial["in background"]
        assert trial["reported"] == pytest.approx(_mean_of_batches(ranks), rel=1e-5)


def _mean_of_batches(ranks: Results) -> list[float]:
    """The loss of each batch, over ranks and micro-batches."""
    micro_batches = [sum(losses) for losses in zip(*(rank["whole"] for rank in ranks), strict=True)]
    pairs = zip(micro_batches[::2], micro_batches[1::2], strict=True)
    return [sum(pair) / (2 * len(ranks)) for pair in pairs]
