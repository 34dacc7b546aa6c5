"""Models whose state is spread over the ranks, and checkpoints for any number of ranks."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from detslurm import pytorch
from tests.pytorch.sharding import Sharded, train

pytestmark = pytest.mark.usefixtures("root")


def on_ranks(count: int, scenario: str, folder: Path, **environment: str) -> dict[str, Any]:
    """What rank 0 returned; the others must have seen the same."""
    folder.mkdir()
    forked = [sys.executable, "-m", "tests.pytorch.forked", str(count)]
    done = subprocess.run(
        [*forked, "-m", "tests.pytorch.sharding", scenario, str(folder)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, *others = [
        json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(count)
    ]
    assert all(other == first for other in others)
    return dict(first)


def close(ours: Any, theirs: Any) -> bool:
    """Equal but for the last bits of double precision."""
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(close, ours, theirs))
    return bool(ours == pytest.approx(theirs, rel=1e-9, abs=1e-12))


@pytest.mark.slow
@pytest.mark.nightly
def test_any_number_of_ranks_goes_on(root: Path, tmp_path: Path) -> None:
    """Four ranks, two, one: the losses and weights of one process that never stopped, even when
    they stop between two steps of the optimizer; without and with shards, and back."""
    alone = train(12, aggregation=2)
    plain = train(5, aggregation=2)

    four = on_ranks(4, "four", tmp_path / "four")
    assert close(four["losses"], alone["losses"][:5])
    # 20 records are 5 batches: not as many on each rank.
    assert close(four["validations"][0], alone["validations"][0])
    folder = root / "checkpoints" / four["checkpoint"]
    assert {"__0_0.distcp", "__3_0.distcp", ".metadata"} <= {
        file.name for file in (folder / "sharded").iterdir()
    }
    saved = torch.load(folder / "state_dict.pth", weights_only=True)
    assert saved["models_state_dict"][0]["0.weight"].is_meta

    checkpoints = {"CHECKPOINT": four["checkpoint"], "PLAIN": plain["checkpoint"]}
    two = on_ranks(2, "two", tmp_path / "two", **checkpoints)
    for name in ("on", "from_plain", "replicated"):
        assert close(two[name]["losses"], alone["losses"][5:9]), name
        assert close(two[name]["validations"][0], alone["validations"][1]), name
    for name in ("losses", "weights"):
        whole, second = two["uninterrupted"][name], two["resumed"][name]
        assert second == (whole[5:] if name == "losses" else whole)  # to the last bit

    assert len(two["full"]["checkpoints"]) == 1  # at the end; all went on without the first

    folder = root / "checkpoints" / two["on"]["checkpoint"]
    loaded: Any = pytorch.load_trial_from_checkpoint_path(str(folder), Sharded)
    assert [p.flatten().tolist() for p in loaded.model.parameters()] == two["on"]["weights"]
    last = train(12, two["on"]["checkpoint"], aggregation=2)
    assert close(last["losses"], alone["losses"][9:])
    assert close(last["weights"], alone["weights"])


def test_reading_runs_no_code(tmp_path: Path) -> None:
    """Torch unpickles the table of contents; here one that would run something is refused."""
    from detslurm.pytorch.checkpointing import _dcp

    folder = tmp_path / "sharded"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single process", category=UserWarning)
        _dcp.write(folder, {"a": torch.ones(2)})
    tensors = {"a": torch.zeros(2)}
    _dcp.read_into(folder, tensors)
    assert tensors["a"].tolist() == [1, 1]

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "evil"),)

    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(RuntimeError, match="is plain data"):
        _dcp.read_into(folder, tensors)
    assert not (tmp_path / "evil").exists()


def test_what_sharded_models_cannot_do(tmp_path: Path) -> None:
    """Validate on the chief alone, or with fewer batches than slots: each slot computes a part."""
    refused = on_ranks(2, "refused", tmp_path / "refused")
    assert "override evaluate_batch() instead" in refused["at_once"]
    assert "validation has 1 batches for 2 slots" in refused["too_few"]
