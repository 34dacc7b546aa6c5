"""Two ranks do what one does: gradients, metrics, reducers, wishes and errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.ranks import Plain, train
from tests.pytorch.scenarios import Adversaries

Results = list[dict[str, Any]]
REPOSITORY = Path(__file__).parents[2]
MPIRUN = shutil.which("mpirun")


def on_two_ranks(scenario: str, folder: Path, **environment: str) -> Results:
    """What each rank returned."""
    folder.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "-m", "tests.pytorch.ranks", scenario, str(folder)],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the two ranks keep their checkpoints."""
    return tmp_path_factory.mktemp("ranks") / "store"


@pytest.fixture(scope="module")
def two(store: Path) -> Results:
    """All scenarios, run once."""
    return on_two_ranks("everything", store.parent / "out", DETSLURM_ROOT=str(store))


def close(ours: Any, theirs: Any) -> bool:
    """Equal but for the last bits of double precision."""
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(map(close, ours, theirs))
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(close(ours[k], theirs[k]) for k in ours)
    return bool(ours == pytest.approx(theirs, rel=1e-12, abs=1e-15))


def test_two_ranks_are_one_with_twice_the_aggregation(root: Path, two: Results) -> None:
    """Weights and averaged training metrics; 2 ranks x 2 batches are 1 rank x 4."""
    for name, aggregation, batches in (("plain", 2, 16), ("aggregated", 4, 16)):
        one = train(aggregation, batches)
        for rank in two:
            assert close(rank[name]["weights"], one["weights"])
            assert close(rank[name]["training"], one["training"])


def test_gradients_are_exchanged_once_a_step(two: Results) -> None:
    """Batches whose gradients are only gathered send nothing."""
    assert two[0]["plain"]["synced"] == [True] * 8
    assert two[0]["aggregated"]["synced"] == [False, True] * 4


def test_validation_of_uneven_shards_is_that_of_the_whole_set(root: Path, two: Results) -> None:
    """5 batches on 2 ranks: averages and reducers are those of one rank, on both ranks."""
    one = train(2, 16)
    for rank in two:
        assert close(rank["plain"]["validation"], one["validation"])
        (metrics,) = rank["plain"]["validation"]
        assert metrics["loss"] == pytest.approx(metrics["mean_square"], rel=1e-12)


def test_validations_that_not_all_ranks_have_batches_for(two: Results) -> None:
    """Buffers of the model are the chief's on all ranks, and nobody waits for the others."""
    by_batch, at_once = (two[0][name]["validation"] for name in ("normalized", "at_once"))
    assert len(by_batch) == 2
    assert close(by_batch, at_once)
    for name in ("normalized", "at_once"):
        assert two[0][name]["validation"] == two[1][name]["validation"]
        assert two[0][name]["weights"] == two[1][name]["weights"]


@pytest.mark.skipif(MPIRUN is None, reason="MPI: there is no mpirun")
@pytest.mark.skipif(find_spec("mpi4py") is None, reason="MPI: mpi4py is not installed")
def test_ranks_that_mpirun_has_started(two: Results, tmp_path: Path) -> None:
    """They find each other, and compute what torchrun's do."""
    assert MPIRUN is not None
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    python = [sys.executable, "-m", "mpi4py", "-m", "tests.pytorch.ranks"]
    done = subprocess.run(
        [MPIRUN, "--oversubscribe", "-n", "2", *python, "aggregated", str(tmp_path)],
        cwd=REPOSITORY,
        env=os.environ | as_root | {"DETSLURM_ROOT": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["weights"] == two[rank]["aggregated"]["weights"]


def test_ranks_keep_the_same_weights(two: Results) -> None:
    """To the last bit, in each scenario."""
    for name in ("plain", "aggregated", "twice", "adversaries"):
        assert two[0][name]["weights"] == two[1][name]["weights"]


def test_several_backward_passes_a_batch(two: Results) -> None:
    """Two halves of the loss are the whole, up to clipping, which the plain one does."""
    (first, *_), (theirs, *_) = two[0]["twice"]["training"], two[0]["plain"]["training"]
    assert close(first["loss"], theirs["loss"])
    assert two[0]["twice"]["weights"] != two[0]["plain"]["weights"]


def test_several_models_and_optimizers(root: Path, two: Results) -> None:
    """A generator, a discriminator and a frozen model give the losses of one rank."""
    one = train(2, 16, Adversaries)
    assert close(two[0]["adversaries"]["training"], one["training"])


def test_compressed_gradients(two: Results) -> None:
    """Half precision on the way costs digits, and both ranks still agree."""
    ours, exact = two[0]["compressed"]["weights"], two[0]["plain"]["weights"]
    assert ours == two[1]["compressed"]["weights"]
    assert not close(ours, exact)
    assert ours == [pytest.approx(values, abs=1e-3) for values in exact]


def test_ranks_that_go_on_between_two_steps(two: Results) -> None:
    """To the last bit: each rank has the gradients that it had gathered."""
    for rank in two:
        assert rank["halfway"]["weights"] == rank["aggregated"]["weights"]


def test_one_rank_goes_on_where_two_were(
    root: Path, two: Results, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The gradients of both are there; random numbers can't be the same, which is said."""
    folder = store / "checkpoints" / two[0]["halfway"]["saved"]
    one = train(2, 8, lambda context: Plain(context, 8), latest_checkpoint=str(folder))
    assert close(one["weights"], two[0]["aggregated"]["weights"])
    assert "saved by 2 ranks and is read by 1" in caplog.text


def test_one_rank_asks_to_stop_and_all_do(two: Results) -> None:
    """After the same batch: the next report finds out."""
    for rank in two:
        assert len(rank["asks_to_stop"]["training"]) == 2


def test_one_rank_fails_to_evaluate_and_all_know(two: Results) -> None:
    """No rank waits for another in vain, and all say what went wrong."""
    for rank in two:
        assert "must return a dict of metrics, not list" in rank["fails_to_evaluate"]
