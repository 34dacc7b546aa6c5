"""Which method a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.searcher.brackets import bracket_plans
from detslurm.searcher.hyperparameters import Grid
from detslurm.searcher.listed import Listed
from detslurm.searcher.method import Method
from detslurm.searcher.promotion import Promotion
from detslurm.searcher.sampling import Samples

SEARCHES = ("single", "random", "grid", "async_halving", "adaptive_asha")


def method_of(searcher: Mapping[str, Any], space: Mapping[str, Any], samples: Samples) -> Method:
    """The method of a resolved `searcher` section."""
    name = searcher["name"]
    if name == "single":
        return Listed(searcher, 1)
    if name == "random":
        return Listed(searcher, searcher["max_trials"])
    if name == "grid":
        return Listed(searcher, len(Grid(space)))
    if name in ("async_halving", "adaptive_asha"):
        return Promotion(searcher, bracket_plans(searcher))
    raise ValueError(f'there is no search method "{name}"')
