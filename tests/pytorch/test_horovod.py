"""Trials on Horovod: the same results as on DDP, to the last bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pytorch.conftest import AS_ROOT, Results, on_ranks
from tests.pytorch.ranks import Plain, train

pytestmark = [pytest.mark.usefixtures("horovod"), pytest.mark.xdist_group("two ranks")]


EACH_ALONE = ("--fusion-threshold-mb", "0")
"""Every gradient is a piece of its own, sent when it comes."""


def launcher(count: int, *more: str) -> list[str]:
    """The launcher by hand, outside of jobs."""
    options = ["--cycle-time-ms", "0.5", f"--mpi-args=-n {count}", *more]
    return [sys.executable, "-m", "detslurm.launch.horovod", *options, "--"]


@pytest.fixture(scope="module")
def on_horovod(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """The store of two ranks, and what each returned of all scenarios."""
    folder = tmp_path_factory.mktemp("horovod")
    environment = {**AS_ROOT, "DETSLURM_ROOT": str(folder)}
    return folder, on_ranks(2, launcher(2), "on_horovod", folder / "out", **environment)


@pytest.fixture
def ranks(on_horovod: tuple[Path, Results]) -> Results:
    return on_horovod[1]


def bits(result: Any) -> Any:
    """What a scenario has computed."""
    if not isinstance(result, dict):
        return result
    named_apart = ("checkpoints", "saved", "synced")  # DDP alone sends while it computes
    return {what: value for what, value in result.items() if what not in named_apart}


def test_horovod_computes_what_ddp_computes(two: Results, ranks: Results) -> None:
    """Aggregation, several passes, models and optimizers, fp16 on the way, a scaler, clipping,
    metrics of uneven validations, saving and going on between two steps, wishes and errors."""
    for rank in (0, 1):
        for scenario, theirs in two[rank].items():
            if scenario in ("calls_the_bare_model", "unused", "reaches"):
                continue  # mistakes with DDP only
            assert bits(ranks[rank][scenario]) == bits(theirs), scenario


def test_parameters_that_not_every_rank_uses(ranks: Results) -> None:
    """The others' gradients count, and nobody waits."""
    ours, theirs = (rank["branches"]["weights"] for rank in ranks)
    assert ours == theirs


def test_gradients_that_change_after_they_were_sent(ranks: Results) -> None:
    """They are sent again, where the trial does not say that they will change."""
    for found, said in (rank["careless"] for rank in ranks):
        assert found == said


def test_checkpoints_are_those_of_ddp(
    two: Results, ranks: Results, store: Path, on_horovod: tuple[Path, Results]
) -> None:
    """The same files with the same weights, optimizer states and gathered gradients."""
    here = on_horovod[0] / "checkpoints" / ranks[0]["halfway"]["saved"]
    there = store / "checkpoints" / two[0]["halfway"]["saved"]
    launcher = Path("code/tests/pytorch/forked.py")  # its forks have its modules
    files = {path.relative_to(there) for path in there.rglob("*")} - {launcher}
    assert files == {path.relative_to(here) for path in here.rglob("*")}
    assert {Path("gradients_rank0.pth"), Path("gradients_rank1.pth")} < files
    for name in ("state_dict.pth", "gradients_rank0.pth", "gradients_rank1.pth"):
        ours, theirs = (_without_random_numbers(path / name) for path in (here, there))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def _without_random_numbers(file: Path) -> Any:
    found = torch.load(file, weights_only=False)
    if isinstance(found, dict):
        return {key: value for key, value in found.items() if not key.startswith("rng_state")}
    return found


def test_one_rank_goes_on_where_horovods_two_were(
    root: Path, ranks: Results, on_horovod: tuple[Path, Results], caplog: pytest.LogCaptureFixture
) -> None:
    """Without Horovod, and said as ever."""
    saved = on_horovod[0] / "checkpoints" / ranks[0]["halfway"]["saved"]
    one = train(2, 8, lambda context: Plain(context, 8), latest_checkpoint=str(saved))
    for ours, theirs in zip(one["weights"], ranks[0]["aggregated"]["weights"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-15)
    assert "saved by 2 ranks and is read by 1" in caplog.text


def test_three_ranks(tmp_path: Path) -> None:
    """Sums of more than two numbers have an order, which is the same again, whichever of many
    pieces is sent first: going on between two steps changes no bit."""
    environment = {**AS_ROOT, "DETSLURM_ROOT": str(tmp_path)}
    for rank in on_ranks(3, launcher(3, *EACH_ALONE), "resumed", tmp_path / "out", **environment):
        assert rank["halfway"]["weights"] == rank["aggregated"]["weights"]


def test_horovodrun_without_mpi(two: Results, store: Path, tmp_path: Path) -> None:
    """By hand, over gloo, from a checkpoint of DDP between two steps."""
    saved = str(store / "checkpoints" / two[0]["halfway"]["saved"])
    horovodrun = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]
    # Half a minute by themselves, in which a busy machine may not have imported torch.
    horovodrun += ["--start-timeout", "300", "--gloo-timeout-seconds", "300"]
    environment = {"DETSLURM_ROOT": str(tmp_path), "USE_HOROVOD": "1", "SAVED": saved}
    found = on_ranks(2, [*horovodrun, sys.executable], "goes_on", tmp_path / "out", **environment)
    for ours, theirs in zip(found, two, strict=True):
        assert ours["weights"] == theirs["aggregated"]["weights"]
