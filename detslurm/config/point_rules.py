"""Rules for what a search knows at its start: `first`, `prior` and `prior_experiments`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from detslurm._base.quantities import counted
from detslurm.config.checking import Checker
from detslurm.config.describe import did_you_mean, found
from detslurm.config.errors import ConfigProblem, Position
from detslurm.config.points import Misfit, PointEntry, Route, entries, fitted
from detslurm.config.schema.hyperparameters import Hyperparameters
from detslurm.config.schema.searcher import Confidence
from detslurm.config.secret_names import is_secret
from detslurm.config.spaces import is_choice, is_constant, is_group
from detslurm.config.yaml_node import YamlNode, key_path

REFERENCE = "trial"
_OWN = ("first", "prior", "prior_experiments")
_WITH_PRIOR = ("random", "async_halving", "adaptive_asha", "pbt")
LEARNING = ("tpe", "gp", "cmaes")
_LIMITS = ("max_trials", "population_size")


def point_problems(root: YamlNode) -> Iterator[ConfigProblem]:
    """The broken rules; without a valid space there is nothing to compare with."""
    searcher, name = root.get("searcher"), root.get("searcher", "name")
    space = root.get("hyperparameters") or YamlNode({}, root.at)
    if searcher is None or name is None:
        return
    if name.value == "custom":
        yield from _custom(searcher)
        return
    yield from _earlier(searcher)
    if not Checker(complete=True).check(space, Hyperparameters).problems:
        yield from _first(searcher, space.plain())
        yield from _prior(searcher, space.plain())


def is_reference(point: Mapping[str, Any], space: Mapping[str, Any]) -> bool:
    """Whether a point names a trial, whose hyperparameters are taken at the submission.

    A hyperparameter that is called `trial` is meant where there is one.
    """
    return point.keys() == {REFERENCE} and REFERENCE not in space


def misfits(point: Mapping[str, Any], space: Mapping[str, Any]) -> Iterator[tuple[Route, str, str]]:
    """The values of a point that are not in the space: their keys, the fault, the remedy."""
    seen: set[Route] = set()
    for entry in entries(space, point):
        if entry.route is None:
            yield entry.keys, *_unknown(entry, space)
        elif entry.route in seen:
            yield entry.keys, "another key is for this hyperparameter", "remove one"
        else:
            seen.add(entry.route)
            try:
                fitted(entry.spec, entry.value, entry.keys[-1])
            except Misfit as wrong:
                yield entry.keys, f"{wrong.expected} is expected, found {_found(entry)}", ""


def _unknown(entry: PointEntry, space: Mapping[str, Any]) -> tuple[str, str]:
    name = ".".join(entry.keys)
    hint = did_you_mean(name, _names(space))
    if is_choice(space.get(outer := name.partition(".")[0])):
        hint = f"give {outer} whole: a mapping of all that one of its vals holds"
    if entry.keys == (REFERENCE,):
        hint = "{trial: N} takes the hyperparameters of trial N, and stands alone"
    return f'there is no hyperparameter "{name}"', hint


def _names(space: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, spec in space.items():
        yield above + key
        if is_group(spec):
            yield from _names(spec, f"{above}{key}.")


def _found(entry: PointEntry) -> str:
    node = YamlNode(entry.value, Position("<point>"))
    return found(node, is_secret(entry.keys[-1], entry.value))


def _custom(searcher: YamlNode) -> Iterator[ConfigProblem]:
    for key in _OWN:
        if (node := searcher.get(key)) is not None and node.value:
            message = "the method of a custom search chooses all samples itself"
            hint = "leave it out, and let initial_operations() of your method create these trials"
            yield ConfigProblem.at(node.where, f"searcher.{key}", message, hint)


def _first(searcher: YamlNode, space: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    first = searcher.get("first")
    if first is None or not first.is_list:
        return
    yield from _too_many(searcher, first)
    for number, node in enumerate(first.value):
        path = key_path("searcher.first", number)
        if not node.is_mapping:
            continue  # the checker reports it
        if is_reference(node.plain(), space):
            trial = node.value[REFERENCE]
            if type(trial.value) is not int or trial.value < 1:
                message = f"the id of a trial is expected, found {found(trial)}"
                yield ConfigProblem.at(trial.at, key_path(path, REFERENCE), message)
            continue
        for keys, message, hint in misfits(node.plain(), space):
            yield _problem(node, path, keys, message, hint)


def _too_many(searcher: YamlNode, first: YamlNode) -> Iterator[ConfigProblem]:
    limits = [(key, searcher.get(key)) for key in _LIMITS]
    name, most = next(((k, n.value) for k, n in limits if n is not None), ("", None))
    if searcher.value["name"].value == "single":
        name, most = "the searcher single", 1
    if type(most) is int and len(first.value) > most:
        message = (
            f"{counted(len(first.value), 'point')}, and {name} allows {counted(most, 'trial')}"
        )
        hint = "remove points" if most == 1 else f"remove points, or raise {name}"
        yield ConfigProblem.at(first.where, "searcher.first", message, hint)


def _prior(searcher: YamlNode, space: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    prior = searcher.get("prior")
    if prior is None or not prior.is_mapping or searcher.value["name"].value not in _WITH_PRIOR:
        return
    seen: set[Route] = set()
    for entry in entries(space, prior.plain()):
        message, hint = _belief_problem(entry, space)
        if not message and entry.route in seen:
            message, hint = "another entry is for this hyperparameter", "remove one"
        seen.add(entry.route or ())
        if message:
            yield _problem(prior, "searcher.prior", entry.keys, message, hint)


def _belief_problem(entry: PointEntry, space: Mapping[str, Any]) -> tuple[str, str]:
    """The fault of an entry of a prior, and the remedy; empty texts if the entry is right."""
    belief, name = entry.value, entry.keys[-1]
    if entry.route is None:
        return _unknown(entry, space)
    if is_constant(entry.spec):
        return "a constant needs no prior", "leave it out"
    if not isinstance(belief, Mapping) or "about" not in belief:
        seen = _found(entry)
        return f"a mapping with about is expected, found {seen}", "such as {about: 0.001}"
    if unknown := sorted(belief.keys() - {"about", "confidence"}):
        return f'there is no key "{unknown[0]}" here', "about and confidence are known"
    confidence = belief.get("confidence", "medium")
    if confidence not in get_args(Confidence):
        return f"one of {', '.join(get_args(Confidence))} is expected as confidence", ""
    try:
        fitted(entry.spec, belief["about"], name)
    except Misfit as wrong:
        seen = _found(entry._replace(value=belief["about"]))
        return f"{wrong.expected} is expected as about, found {seen}", ""
    return "", ""


def _earlier(searcher: YamlNode) -> Iterator[ConfigProblem]:
    given = searcher.get("prior_experiments")
    if given is None or not given.value:
        return
    fault, hint = _refusal({key: node.plain() for key, node in searcher.value.items()})
    if fault:
        yield ConfigProblem.at(given.where, "searcher.prior_experiments", fault, hint)


def _refusal(given: Mapping[str, Any]) -> tuple[str, str]:
    """Why a searcher can't learn from other experiments, and the remedy; empty texts if it can."""
    name, sampler = given.get("name"), given.get("sampler")
    if name == "optuna" and (sampler or LEARNING[0]) not in LEARNING:
        return (
            f"Optuna's {sampler} takes no results of other experiments",
            f"use one of {', '.join(LEARNING)}",
        )
    if name in ("async_halving", "adaptive_asha") and sampler is None:
        return "without a sampler this searcher draws samples at random", "set sampler: tpe"
    if given.get("pruner") == "hyperband":
        return "the pruner hyperband divides trials by their numbers", "choose another pruner"
    metrics = given.get("metrics")
    if (isinstance(metrics, list) and len(metrics) > 1) or given.get("constraints"):
        return "results of earlier experiments are compared by one metric", "leave out one of them"
    return "", ""


def _problem(node: YamlNode, path: str, keys: Route, message: str, hint: str) -> ConfigProblem:
    for key in keys:
        node, path = node.value[key], key_path(path, key)
    return ConfigProblem.at(node.where, path, message, hint)
