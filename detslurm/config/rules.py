"""Rules between the fields of one section: what no single type or bound can express."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

from detslurm.config.errors import Broken
from detslurm.config.schema import hyperparameters as hp
from detslurm.config.schema.arguments import Arguments
from detslurm.config.schema.recording import LogPolicy
from detslurm.config.schema.searcher import Halving, Obsolete, Searcher, Stop
from detslurm.config.schema.storage import Azure, SharedFS
from detslurm.config.schema.training import UNITS, Length, Profiling

Given = dict[str, Any]


Rule = Callable[[Given], Iterator[Broken]]


def broken_rules(section: type, given: Given) -> Iterator[Broken]:
    """The broken rules of a section, those of its base classes included."""
    for base in section.__mro__:
        if base in _RULES:
            yield from _RULES[base](given)


def _length(given: Given) -> Iterator[Broken]:
    if sum(unit in given for unit in UNITS) != 1:
        yield Broken(
            None, 'a length object must have one attribute named "batches", "records", or "epochs"'
        )


def _ordered(given: Given) -> Iterator[Broken]:
    low, high = given["minval"], given["maxval"]
    if not low < high:
        yield Broken("minval", f"minval must be less than maxval, found {low} and {high}")
    elif not math.isfinite(float(high) - float(low)):
        yield Broken("minval", "the range from minval to maxval is too wide")


def _log(given: Given) -> Iterator[Broken]:
    yield from _ordered(given)
    if given["base"] == 1:
        yield Broken("base", "1 to any power is 1: base must be another number, such as 10")
    for field in ("minval", "maxval"):
        try:
            value = float(given["base"]) ** float(given[field])
        except (OverflowError, ZeroDivisionError):
            value = math.inf
        if not math.isfinite(value):
            yield Broken(
                field,
                f"{given['base']} to the power {given[field]} is too big",
                "minval and maxval are exponents of base, as in -4 for 1e-4",
            )


def _searcher(given: Given) -> Iterator[Broken]:
    yield from broken_objectives(given)
    yield from _ends_early(given)
    if "source_trial_id" in given and "source_checkpoint_uuid" in given:
        message = "source_trial_id and source_checkpoint_uuid must not both be set"
        yield Broken("source_checkpoint_uuid", message)


def _stop(given: Given) -> Iterator[Broken]:
    if not given:
        yield Broken(None, "no rule is set", "give no_better_for, target, or both")


def _ends_early(given: Given) -> Iterator[Broken]:
    """A searcher's `stop`."""
    stop, name = given.get("stop"), given.get("name")
    if not stop:
        return
    if name == "custom":
        message = "the method of a custom search decides when it ends"
        yield Broken("stop", message, "let the method return Shutdown")
    elif len(given.get("metrics", ())) > 1 or given.get("constraints"):
        message = "stop compares by one metric, without constraints"
        yield Broken("stop", message, "leave it out, and cancel the experiment when it is enough")
    elif name == "single" and stop.get("no_better_for") is not None:
        message = "no_better_for counts trials, and the single searcher has only one"
        yield Broken("stop", message, "give target instead")


def _halving(given: Given) -> Iterator[Broken]:
    if given.get("max_length") == 0:
        message = f"the {given['name']} searcher needs a max_length of at least 1"
        yield Broken("max_length", message)
    newer = {"time_metric", "max_time"} & set(given)
    if not newer and "max_length" not in given:
        yield Broken(
            None,
            f"the {given['name']} searcher requires max_time and time_metric to be set",
            'for example time_metric: "batches", max_time: 1000 (or max_length: {batches: 1000})',
        )
    elif len(newer) == 1 and "max_length" not in given:
        missing = ({"time_metric", "max_time"} - newer).pop()
        yield Broken(None, f"{newer.pop()} is set, so {missing} is required too")
    if newer and "max_length" in given:
        yield from _generations(given)


def _generations(given: Given) -> Iterator[Broken]:
    length = given["max_length"]
    unit, units = next(iter(length.items())) if isinstance(length, dict) else (None, length)
    if given.get("max_time", units) != units or given.get("time_metric", unit) != unit:
        yield Broken(
            "max_length",
            "max_length contradicts time_metric and max_time",
            "keep one of them",
        )


def _obsolete(given: Given) -> Iterator[Broken]:
    yield Broken(
        "name",
        f"the {given['name']} searcher is only read from old experiments and can't be run",
        "use adaptive_asha, or async_halving",
    )


def _shared_fs(given: Given) -> Iterator[Broken]:
    if given.get("storage_path") is None:
        return
    host, below = (os.path.expandvars(given[key]) for key in ("host_path", "storage_path"))
    parts = PurePosixPath(below).parts
    outside = below.startswith("/") and not PurePosixPath(below).is_relative_to(host)
    if outside or ".." in parts:
        message = "must either be a relative directory or a subdirectory of host_path"
        yield Broken("storage_path", f"storage_path {message}")


def _azure(given: Given) -> Iterator[Broken]:
    if "credential" in given and "connection_string" in given:
        yield Broken("credential", "credential and connection_string must not both be set")
    if ("connection_string" in given) == ("account_url" in given):
        yield Broken(None, "exactly one of connection_string or account_url must be set")


def _profiling(given: Given) -> Iterator[Broken]:
    end = given.get("end_after_batch")
    if end is not None and given.get("begin_on_batch", 0) > end:
        yield Broken("end_after_batch", "begin_on_batch must not be greater than end_after_batch")


def _log_policy(given: Given) -> Iterator[Broken]:
    # Before policies had names, they were a pattern and an action.
    if "name" not in given and not {"pattern", "action"} <= set(given):
        yield Broken(
            None,
            '"name" must be set, and "pattern" is also required unless you intend to disable an '
            "existing policy",
        )


def _arguments(given: Given) -> Iterator[Broken]:
    if ("flags" in given) == ("file" in given):
        yield Broken(None, "either flags or file is expected")
    elif "option" in given and "file" not in given:
        yield Broken("option", "option names the file, and there is no file")


# -- several metrics, constraints ------------------------------------------------------------------

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


_RULES: dict[type, Rule] = {
    Arguments: _arguments,
    Length: _length,
    hp.Int: _ordered,
    hp.Double: _ordered,
    hp.Log: _log,
    Searcher: _searcher,
    Stop: _stop,
    Halving: _halving,
    Obsolete: _obsolete,
    SharedFS: _shared_fs,
    Azure: _azure,
    Profiling: _profiling,
    LogPolicy: _log_policy,
}
