"""Several ranks by the launcher: NCCL with a GPU each, gloo where two share one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.conftest import ON_CPU
from tests.gpu.launching import Results, launched
from tests.pytorch.ranks import train
from tests.pytorch.test_ranks import close

Note = Callable[[str, object], None]


def ranks_here(which: str, note: Note) -> int:
    """One rank, or as many as there are GPUs, of which the batches are multiples."""
    gpus = 2 if ON_CPU else torch.cuda.device_count()
    if which == "all" and gpus < 2:
        pytest.skip("GPU: this machine has one, and NCCL wants one for each rank")
    count = max(number for number in (1, 2, 4, 8) if number <= gpus) if which == "all" else 1
    note("device", f"{count} x {'cpu, gloo' if ON_CPU else torch.cuda.get_device_name()}")
    return count


def backend() -> str:
    return "gloo" if ON_CPU else "nccl"


def check_replicated(ranks: Results) -> None:
    """They agree to the last bit with each other, and nearly so with one rank that did it all."""
    count, first = len(ranks), ranks[0]
    for rank in ranks:
        for name in ("plain", "aggregated", "adversaries", "amp"):
            assert rank[name]["weights"] == first[name]["weights"], name
        assert rank["halfway"]["weights"] == first["aggregated"]["weights"]
        assert close(rank["twice"]["weights"], first["plain"]["weights"])
        assert rank["normalized"]["validation"] == first["normalized"]["validation"]
        scales = [metrics["scale"] for metrics in rank["amp"]["training"]]
        assert scales == [64.0] * 4 + [32.0] * 4  # as it was before the update of each batch
    one = train(count, 8 * count)
    assert close(first["plain"]["weights"], one["weights"])
    assert close(first["plain"]["training"], one["training"])
    if count > 1:
        ours, exact = first["compressed"]["weights"], one["weights"]
        assert ours == [pytest.approx(values, abs=1e-3) for values in exact]


@pytest.mark.parametrize("which", ["one", "all"])
def test_replicated_models(
    root: Path, device: torch.device, tmp_path: Path, record_property: Note, which: str
) -> None:
    """On one GPU and on all: gradients, several models, fp16 on the way, buffers, an overflow on
    one rank, and going on between two steps."""
    count = ranks_here(which, record_property)
    environment = {"GPU_BACKEND": backend()} if count == 1 else {}  # several are connected for us
    ranks = launched(count, "tests.gpu.ranks", "replicated", tmp_path / "out", **environment)
    assert {rank["backend"] for rank in ranks} == {backend()}
    assert [rank["device"] for rank in ranks] == ["cpu"] * count if ON_CPU else list(range(count))
    check_replicated(ranks)
    if count == 1:
        bare, replicated = ranks[0]["exchanged"]
        assert bare == replicated


@pytest.mark.parametrize("which", ["one", "all"])
def test_models_that_are_split_up(
    root: Path, device: torch.device, tmp_path: Path, record_property: Note, which: str
) -> None:
    """`fully_shard()`: the checkpoint that all write is gone on from to the last bit, and the
    losses are those of one process with the whole model."""
    count = ranks_here(which, record_property)
    environment = {"GPU_BACKEND": backend()} if count == 1 else {}
    ranks = launched(count, "tests.gpu.ranks", "sharded", tmp_path / "out", **environment)
    for rank in ranks:
        whole, first, rest = (rank[name] for name in ("whole", "first", "rest"))
        assert first["losses"] + rest["losses"] == whole["losses"] == ranks[0]["whole"]["losses"]
        assert rest["weights"] == whole["weights"]
    from tests.pytorch import sharding

    alone: Any = sharding.train(8, kind=sharding.Replicated)
    assert ranks[0]["whole"]["losses"] == pytest.approx(alone["losses"], rel=1e-9)


def test_two_ranks_share_a_gpu(
    root: Path, device: torch.device, tmp_path: Path, record_property: Note
) -> None:
    """Over gloo, which the script itself has chosen: NCCL refuses to."""
    name = "cpu" if ON_CPU else torch.cuda.get_device_name()
    record_property("device", f"{name}, gloo")
    ranks = launched(2, "tests.gpu.ranks", "replicated", tmp_path / "out", GPU_BACKEND="gloo")
    assert {rank["backend"] for rank in ranks} == {"gloo"}
    check_replicated(ranks)
