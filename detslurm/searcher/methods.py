"""The method that a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detslurm.searcher.custom import Custom
from detslurm.searcher.halving.brackets import bracket_plans
from detslurm.searcher.halving.method import Halving
from detslurm.searcher.halving.model import ResultModel, model_of
from detslurm.searcher.halving.promotion import Promotion
from detslurm.searcher.halving.stopping import Stopping
from detslurm.searcher.independent import IndependentTrials
from detslurm.searcher.method import Method, length_of
from detslurm.searcher.optuna.method import OptunaMethod
from detslurm.searcher.pbt import PBT
from detslurm.searcher.sampling import Samples
from detslurm.searcher.trials import RUNNABLE, trial_count


def method_of(
    searcher: Mapping[str, Any], space: Mapping[str, Any], samples: Samples, seed: int = 0
) -> Method:
    """The method of a resolved `searcher` section."""
    name = searcher["name"]
    if name in RUNNABLE:
        return IndependentTrials(searcher, trial_count(searcher, space))
    if name in ("async_halving", "adaptive_asha"):
        return _halving(searcher, model_of(searcher, space, samples))
    if name == "pbt":
        return PBT(searcher, space, samples)
    if name == "custom":
        return Custom(searcher)
    if name == "optuna":
        return OptunaMethod(searcher, space, seed)
    raise ValueError(f'there is no search method "{name}"')


def _halving(searcher: Mapping[str, Any], model: ResultModel | None) -> Halving:
    """By promotion with a max_length, unless stop_once is set (as it is where the user had set
    max_time, too); by stopping with max_time alone."""
    promotes = length_of(searcher)[0] is not None and not searcher.get("stop_once")
    return (Promotion if promotes else Stopping)(searcher, bracket_plans(searcher), model)
