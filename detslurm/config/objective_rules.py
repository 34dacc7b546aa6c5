"""Rules for several metrics and constraints: the searchers that take them, and their form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detslurm.config.errors import Broken

# Optuna's samplers that learn from several metrics and from constraints, or from no result at all.
SEVERAL = ("tpe", "nsgaii", "nsgaiii", "gp", "random", "qmc", "brute_force")


def broken_objectives(given: dict[str, Any]) -> Iterator[Broken]:
    """The broken rules of a searcher's `metrics` and `constraints`."""
    metrics = given.get("metrics", [])
    yield from _forms(given, metrics)
    asked = [field for field in ("metrics", "constraints") if given.get(field)]
    for field in asked:
        if field == "constraints" or len(metrics) > 1:
            yield from _refused(given, field)


def _forms(given: dict[str, Any], metrics: list[dict[str, Any]]) -> Iterator[Broken]:
    names = [metric["name"] for metric in metrics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield Broken("metrics", f"metrics names {', '.join(twice)} twice", "name each once")
    if not metrics:
        return
    if given.get("metric") != names[0]:
        message = "metric contradicts metrics, the first of which it is"
        yield Broken("metric", message, "keep one of the two keys")
    elif given.get("smaller_is_better", True) != metrics[0].get("smaller_is_better", True):
        message = "smaller_is_better contradicts the first of metrics"
        yield Broken("smaller_is_better", message, "set it for each of metrics")


def _refused(given: dict[str, Any], field: str) -> Iterator[Broken]:
    name = given["name"]
    what = "several metrics" if field == "metrics" else "constraints"
    if name == "pbt":
        message = f"the pbt searcher can't compare by {what}"
        yield Broken(field, message, "use random, grid, optuna, async_halving or adaptive_asha")
    elif name == "custom":
        message = f"the custom searcher leaves {what} to its method"
        yield Broken(field, message, "pass a mapping to report_completed() instead")
    elif name == "optuna" and given.get("sampler", "tpe") not in SEVERAL:
        message = f"Optuna's {given['sampler']} can't learn from {what}"
        yield Broken("sampler", message, f"use one of {', '.join(SEVERAL[:5])}")
    elif name in ("async_halving", "adaptive_asha") and given.get("sampler"):
        message = f"the model that chooses samples in {name} can't learn from {what}"
        yield Broken("sampler", message, "leave it out, or use the optuna searcher")
    if name == "optuna" and field == "metrics" and given.get("pruner", "nop") != "nop":
        message = "Optuna's pruners can't judge by several metrics"
        yield Broken("pruner", message, "leave it out, or use async_halving")
