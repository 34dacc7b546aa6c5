"""Several ranks: the Trainer does what DeepSpeed's own loop does, also in two runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.light import LIGHT
from tests.pytorch.conftest import REPOSITORY, Results, on_ranks

pytestmark = pytest.mark.xdist_group("two ranks")


def results(count: int, scenario: str, factory: pytest.TempPathFactory) -> Results:
    """What each rank returned of a scenario."""
    folder = factory.mktemp("deepspeed")
    return on_ranks(
        count,
        [sys.executable, "-m", "tests.pytorch.forked", str(count)],
        scenario,
        folder / "out",
        module="tests.pytorch.deepspeed.ranks",
        DETSLURM_ROOT=str(folder / "store"),
        DS_ACCELERATOR="cpu",
        **LIGHT | {"PYTHONPATH": f"{LIGHT['PYTHONPATH']}:{REPOSITORY}"},
    )


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """ZeRO 0 to 3, and other trials."""
    return results(2, "two_ranks", tmp_path_factory)


@pytest.fixture(scope="session")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two stages by two replicas."""
    return results(4, "pipelines", tmp_path_factory)


@pytest.fixture(scope="session")
def background(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Checkpoints that are written while training goes on."""
    return results(2, "background", tmp_path_factory)


def is_bit_equal(run: dict[str, Any]) -> bool:
    """Whether a training's losses are those of DeepSpeed's loop; in two runs, too."""
    validations = run["resumed"]["validation"][-1:] == run["trainer"]["validation"][-1:]
    return bool(
        run["trainer"]["losses"] == run["plain"] == run["resumed"]["losses"] and validations
    )


def mean_of_ranks(ranks: Sequence[dict[str, Any]], kind: str) -> list[float]:
    """The loss of each batch, over ranks and micro-batches."""
    losses = [rank[kind]["plain"] for rank in ranks]
    accumulated = len(losses[0]) // len(ranks[0][kind]["trainer"]["training"])
    every = [
        [loss for own in losses for loss in own[start : start + accumulated]]
        for start in range(0, len(losses[0]), accumulated)
    ]
    return [sum(batch) / len(batch) for batch in every]


def reported(run: dict[str, Any]) -> list[float]:
    return [metrics["loss"] for metrics in run["trainer"]["training"]]


def test_ranks_that_share_sequences(two: Results) -> None:
    """They read the same records, as DeepSpeed's own batch arithmetic has it."""
    places = [[(p["data_parallel_rank"], p["data_parallel_world_size"]) for p in rank["by mesh"]]
              for rank in two]  # fmt: skip
    assert places == [[(0, 1), (0, 2)], [(0, 1), (1, 2)]]


def test_every_stage_trains_as_deepspeed_alone_does(two: Results) -> None:
    """To the last bit on every rank; the metrics are averages over micro-batches and ranks."""
    for kind in (name for name in two[0] if name[0].isdigit()):
        for rank in two:
            assert is_bit_equal(rank[kind]), kind
            rough = 1e-2 if "bf16" in kind else 1e-6
            assert reported(rank[kind]) == pytest.approx(mean_of_ranks(two, kind), rel=rough)


def test_pipelines_train_as_deepspeed_alone_does(pipelines: Results) -> None:
    """Four ranks: metrics come from the last stages, and all ranks get them."""
    for kind in (name for name in pipelines[0] if name[0].isdigit()):
        for rank in pipelines:
            assert is_bit_equal(rank[kind]), kind
            assert reported(rank[kind]) == rank[kind]["plain"]


@pytest.mark.parametrize("kind", [f"{stage} fp32" for stage in range(4)])
def test_the_model_learns_what_it_learns_without_deepspeed(two: Results, kind: str) -> None:
    assert reported(two[0][kind]) == pytest.approx(two[0]["without"], rel=1e-6)


def test_a_pipeline_learns_what_the_whole_model_does(pipelines: Results) -> None:
    """Which is that gradients are not clipped: without ZeRO, DeepSpeed does not in a pipeline."""
    whole = pipelines[0]["without"]
    assert reported(pipelines[0]["0 fp32"]) == pytest.approx(whole, rel=1e-6)


def test_accumulation_by_hand(two: Results) -> None:
    """The same micro-batches, losses and metrics; a wrong number of them is an error."""
    for rank in two:
        assert rank["by hand"]["losses"] == rank["automatic"]["losses"]
        by_hand, automatic = (
            [metrics["loss"] for metrics in rank[how]["training"]]
            for how in ("by hand", "automatic")
        )
        assert by_hand == pytest.approx(automatic, rel=1e-6)  # averaged in single precision
        assert [batch for _, batch in rank["by hand"]["calls"]] == list(range(6))
        assert [batch for _, batch in rank["automatic"]["calls"]] == [n // 2 for n in range(12)]
        for wrong in (1, -1):
            text = rank[f"wrong by {wrong}"]
            assert "did not train for gradient accumulation steps" in text


def test_a_trial_that_never_steps_is_warned_of_once(two: Results) -> None:
    """By one rank, at the first of three reports."""
    (said,), nothing = two[0]["idle"], two[1]["idle"]
    assert "calls no engine.step()" in said
    assert nothing == []


def test_ranks_that_divide_reading_and_reporting(two: Results) -> None:
    """A unit of the trial's own: all of the data goes through rank 0, and the metrics are rank 1's,
    in training and in validation; both have all of them."""
    for rank in two:
        run = rank["divided"]
        assert run["losses"] == two[0]["divided"]["losses"]
        assert len(set(run["losses"])) == 12  # micro-batches, the data's
        assert [metrics["rank"] for metrics in run["training"] + run["validation"]] == [1] * 7


def test_two_engines(two: Results) -> None:
    """Each has its own checkpoint."""
    for rank in two:
        once, again = rank["adversaries"], rank["adversaries again"]
        assert {"maker", "critic"} <= once["training"][0].keys()
        assert len(once["validation"]) == 2
        assert again["validation"][-1] == rank["adversaries in one"]["validation"][-1]


def test_a_rank_that_can_not_save_ends_the_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Which wait for it inside of DeepSpeed, and would for half an hour."""
    with pytest.raises(AssertionError, match=r"no space left|closed by peer"):
        results(2, "full_disk", tmp_path_factory)


class TestInTheBackground:
    """Checkpoints that are written while training goes on."""

    def test_they_hold_what_those_of_the_foreground_do(self, background: Results) -> None:
        """The first is written when batches have changed everything in place, the second into the
        same memory: every tensor and value is the same, and so is a training taken up from it."""
        from tests.pytorch.deepspeed.background import KINDS

        for rank in background:
            for name in KINDS:
                found = rank[name]
                waited, went_on, again = found["runs"]
                assert found["unlike"] == [], name
                assert found["checkpoints"] == 3
                assert waited == went_on == again, name
                assert found["modes"] == ["0o0"]

    def test_what_one_rank_can_not_write_ends_all(self, background: Results) -> None:
        """With its error, which the other rank names."""
        one, other = (rank["broken writer"]["error"] for rank in background)
        assert one == "RuntimeError: KeyError: 'a broken writer' (on rank 1)"
        assert other == "KeyError: 'a broken writer'"

    def test_a_full_disk_of_one_rank_costs_one_checkpoint(self, background: Results) -> None:
        """Training goes on on both, and the next ones are saved."""
        for rank in background:
            assert len(rank["full disk"]["checkpoints"]) == 2
            assert len(rank["full disk"]["training"]) == 6

    def test_an_unfinished_one_is_given_up_with_a_mistake(self, background: Results) -> None:
        """The mistake is what is raised, nobody is asked, and nothing is left that could count."""
        for rank in background:
            assert rank["mistake"]["error"] == "KeyError: 'a mistake'"
            assert rank["left"] == []
