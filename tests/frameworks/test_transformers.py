"""A trial with Hugging Face's Trainer has its own learning rate, from whatever checkpoint."""

from __future__ import annotations

from pathlib import Path

from tests.beside import hugging_face
from tests.frameworks.scripts import printed_by

__all__ = ["hugging_face"]


def test_options_of_the_optimizer_are_the_trials_own(hugging_face: Path, tmp_path: Path) -> None:
    """Half of the way is behind, so that half of the rate is left, and then a quarter; what was
    learnt stays. Rates of single layers are those of the script's optimizer."""
    found, _ = printed_by("transformers_rates.py", hugging_face, tmp_path)
    assert found == {
        "trainer": [
            2,
            [0.005, 0.25, 0.8],
            [0.005, 0.0, 0.8],
            [0.0025, 0.25, 0.8],
            [0.0025, 0.0, 0.8],
        ],
        "own": [2, [0.01, 0.01, 0.9], [0.005, 0.01, 0.9], [0.005, 0.01, 0.9], [0.0025, 0.01, 0.9]],
        "end": [True, False],
        "restored": [True],
        "half-written": [True],
    }
