"""Engines of DeepSpeed go on on other numbers of ranks, or say why they can't."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from detslurm.pytorch.deepspeed._layout import (
    EngineLayout,
    Present,
    Saved,
    needs_conversion,
    obstacle,
)
from tests.light import LIGHT

FOUR, TWO = EngineLayout(1, data_parallel=4), EngineLayout(1, data_parallel=2)
PIPELINE = EngineLayout(1, data_parallel=2, pipeline=2)


@pytest.mark.parametrize(
    "saved, present, converts",
    [
        (FOUR, FOUR, False),
        (FOUR, EngineLayout(2, 4), False),  # ZeRO 1 and 2 write the same files
        (FOUR, TWO, True),
        (EngineLayout(3, 2), EngineLayout(3, 4), True),
        (EngineLayout(0, 4), EngineLayout(0, 1), False),
        (EngineLayout(0, 2, pipeline=2), EngineLayout(0, 1, pipeline=2), False),
        (PIPELINE, EngineLayout(1, 2, pipeline=1), True),  # the same number of data-parallel ranks
        (PIPELINE, EngineLayout(1, 1, pipeline=4), True),
        (EngineLayout(1, 2, model_parallel=2), EngineLayout(1, 2, model_parallel=2), False),
    ],
)
def test_what_goes_on(saved: EngineLayout, present: EngineLayout, converts: bool) -> None:
    """Any ranks load what has no parts, as many as before load parts; the rest is converted."""
    assert obstacle(Saved(saved), Present(present)) is None
    assert needs_conversion(saved, present) is converts


@pytest.mark.parametrize(
    "saved, present, reason",
    [
        (Saved(FOUR), EngineLayout(0, 4), "Set zero_optimization.stage to 1"),
        (Saved(EngineLayout(3, 4)), EngineLayout(2, 4), "Set zero_optimization.stage to 3"),
        (
            Saved(EngineLayout(0, 2, 2)),
            EngineLayout(0, 4, 1),
            "use 2 stages, as before, or train with ZeRO",
        ),
        (Saved(FOUR), EngineLayout(1, 4, pipeline=1), "One is a pipeline"),
        (
            Saved(EngineLayout(1, 2, model_parallel=2)),
            FOUR,
            "can't be put together again. Run it on 4",
        ),
        (
            Saved(EngineLayout(0, 2, model_parallel=2)),
            EngineLayout(0, 4),
            "can't be put together again",
        ),
        (Saved(FOUR, frozenset({"momentum_buffer"})), TWO, "keeps momentum_buffer. Run it on 4"),
        (Saved(FOUR, frozenset()), TWO, "keeps nothing yet. Run it on 4 slots, as before."),
        (Saved(FOUR, None), TWO, "elastic_checkpoint"),
        (Saved(FOUR, by_groups=True), TWO, "experts"),
        (Saved(FOUR, is_offloaded=True), TWO, "NVMe"),
        (Saved(PIPELINE, repeated=frozenset({"a", "b"})), TWO, "One is a pipeline"),
        (Saved(PIPELINE, groups=frozenset({1, 2})), EngineLayout(1, 1, 4), "groups of parameters"),
        (Saved(PIPELINE, repeated=frozenset({"a", "b"})), EngineLayout(1, 1, 4), "not tied (b)"),
    ],
)
def test_what_does_not(saved: Saved, present: EngineLayout, reason: str) -> None:
    """DeepSpeed would raise something obscure, or load something wrong without a word."""
    assert reason in str(obstacle(saved, Present(present, tied=frozenset({"a"}))))


def test_small_groups() -> None:
    """DeepSpeed's loading fails on a rank that has no part of a group, on that rank alone."""
    assert "too small" in str(obstacle(Saved(TWO), Present(FOUR, has_parts=False)))
    assert obstacle(Saved(FOUR), Present(FOUR, has_parts=False)) is None


def test_layouts_are_named() -> None:
    """As a message has them."""
    assert str(FOUR) == "4 ranks with ZeRO stage 1"
    assert str(EngineLayout(0, 1)) == "1 rank with no ZeRO"
    assert str(PIPELINE) == "4 ranks (pipeline of 2 x 2 data-parallel) with ZeRO stage 1"
    assert PIPELINE.ranks == 4


KINDS = ["2 half plain", "3 bfloat16 plain", "1 float32 momentum", "1 bfloat16 pipeline"]
Engines = dict[int, dict[str, list[Any]]]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """What each rank had, by the number of ranks and the kind of engine: 2, then 4, then 1."""
    folder = tmp_path_factory.mktemp("engines")
    environment = {
        **os.environ,
        **LIGHT,
        "DS_ACCELERATOR": "cpu",
        "DETSLURM_ROOT": str(folder / "store"),
    }
    command = [sys.executable, "-m", "tests.pytorch.deepspeed.engines", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not list(folder.glob("*/*.partial"))  # nothing is left of conversions
    found: Engines = {}
    for file in sorted(folder.glob("*/*.pt")):
        by_kind = found.setdefault(int(file.parent.name), {})
        by_kind.setdefault(file.stem[:-2], []).append(torch.load(file, weights_only=False))
    return found


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "momentum" not in kind])
def test_an_engine_goes_on_on_more_ranks_and_on_fewer(engines: Engines, kind: str) -> None:
    """Bit for bit what was saved: also buffers, frozen parameters, each group's options, counts."""
    saved = engines[2][kind]
    wanted = {name: value for rank in saved for name, value in rank["state"].items()}
    for ranks in (4, 1):
        assert len(engines[ranks][kind]) == ranks
        for rank in engines[ranks][kind]:
            for name, value in rank["state"].items():
                assert equal(value, wanted[name]), (ranks, name)
            assert rank["losses"] == pytest.approx(saved[0]["losses"], rel=1e-3)
            assert rank["steps"] == saved[0]["steps"]
        seen = {name for rank in engines[ranks][kind] for name in rank["state"]}
        assert seen == set(wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_one_process_loads_what_it_uses(engines: Engines, kind: str) -> None:
    """load_trial_from_checkpoint_path: weights and buffers of any engine, whatever trained it."""
    wanted = {name: value for rank in engines[2][kind] for name, value in rank["state"].items()}
    (used,) = engines[0][kind]
    assert len(used["state"]) >= 12
    for name, value in used["state"].items():
        assert equal(value, wanted[name]), name


def equal(value: Any, wanted: Any) -> bool:
    """Of tensors each bit."""
    return torch.equal(value, wanted) if torch.is_tensor(value) else bool(value == wanted)


def test_an_optimizer_that_deepspeed_cannot_convert_is_refused(engines: Engines) -> None:
    """On every rank, with what was saved, what is there, and what would help."""
    refusals = engines[4]["1 float32 momentum"]
    assert len(refusals) == 4
    for refusal in refusals:
        assert "was saved by 2 ranks with ZeRO stage 1; this is 4 ranks" in refusal
        assert "this optimizer keeps momentum_buffer. Run it on 2 slots, as before." in refusal
