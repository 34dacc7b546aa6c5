"""Rules between sections of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from detslurm.config.argument_rules import argument_problems
from detslurm.config.entrypoints import names_trial_class, python_command
from detslurm.config.errors import ConfigProblem
from detslurm.config.point_rules import point_problems
from detslurm.config.schema.slurm import Slurm, limit_seconds
from detslurm.config.space_rules import space_problems
from detslurm.config.yaml_node import YamlNode, key_path


def experiment_problems(root: YamlNode) -> Iterator[ConfigProblem]:
    """All broken rules; values of a wrong kind are left to the checker."""
    rules = (
        _workspace,
        space_problems,
        _slots,
        _budget,
        _single_node,
        _signal_lead,
        _length,
        _environment,
        _log_policies,
        argument_problems,
        _outputs,
        _warm_start,
        point_problems,
    )
    for rule in rules:
        yield from rule(root)


def _workspace(root: YamlNode) -> Iterator[ConfigProblem]:
    given = {key: root.get(key) for key in ("workspace", "project")}
    named = {key: node for key, node in given.items() if node and node.value != ""}
    if len(named) == 1:
        key, node = next(iter(named.items()))
        other = "project" if key == "workspace" else "workspace"
        message = f"{key} stands without {other}: both must be set, or neither"
        yield ConfigProblem.at(node.at, key, message, f"add {other}")


def _slots(root: YamlNode) -> Iterator[ConfigProblem]:
    most = root.get("resources", "max_slots")
    slots = _number(root.get("resources", "slots_per_trial"), 1)
    if most and _number(most, slots) < slots:
        yield ConfigProblem.at(
            most.at,
            "resources.max_slots",
            f"max_slots is less than slots_per_trial ({slots}): no trial could ever run",
        )


def _budget(root: YamlNode) -> Iterator[ConfigProblem]:
    budget = root.get("slurm", "budget")
    slots = root.get("resources", "slots_per_trial")
    if budget and budget.is_mapping and slots and slots.value == 0:
        message = "trials without slots (resources.slots_per_trial: 0) use no slot-hours"
        yield ConfigProblem.at(budget.at, "slurm.budget", message)


def _single_node(root: YamlNode) -> Iterator[ConfigProblem]:
    single = root.get("resources", "is_single_node")
    per_node = root.get("slurm", "slots_per_node")
    slots = _number(root.get("resources", "slots_per_trial"), 1)
    if single and single.value is True and per_node and _number(per_node, slots) < slots:
        yield ConfigProblem.at(
            single.at,
            "resources.is_single_node",
            f"{slots} slots don't fit on one node with slurm.slots_per_node: {per_node.value}",
        )


def _signal_lead(root: YamlNode) -> Iterator[ConfigProblem]:
    limit, lead = root.get("slurm", "time"), root.get("slurm", "signal_lead")
    if limit is None or not isinstance(limit.value, int | str):
        return
    seconds = limit_seconds(limit.value)
    # The default is shortened to fit, also where it comes from the configuration of an earlier
    # experiment, which names it.
    if seconds and lead and seconds <= _number(lead, 0) != Slurm().signal_lead:
        message = f"the signal would come {lead.value} s before the end of {seconds} s"
        yield ConfigProblem.at(lead.at, "slurm.signal_lead", message, "set it below slurm.time")


def _environment(root: YamlNode) -> Iterator[ConfigProblem]:
    staged, prefix = root.get("slurm", "stage_environment"), root.get("slurm", "container_prefix")
    runtime = root.get("slurm", "container")
    keys = {"slurm.container_prefix": prefix, "slurm.container": runtime}
    given = [key for key, node in keys.items() if node and node.value not in ("none", [])]
    if staged and staged.value is not False and given:
        message = f"code in a container ({given[0]}) has the environment of its image"
        advice = "leave out one of the two: an image is a single file already"
        yield ConfigProblem.at(staged.at, "slurm.stage_environment", message, advice)
    if prefix and len(given) == len(keys):
        message = "slurm.container starts a container already"
        advice = "leave out one of the two; `slurm.container: none` if it is the site's"
        yield ConfigProblem.at(prefix.at, "slurm.container_prefix", message, advice)


def _log_policies(root: YamlNode) -> Iterator[ConfigProblem]:
    policies = root.get("log_policies")
    names = [one.get("name") for one in policies.value] if policies and policies.is_list else []
    for index, name in enumerate(names):
        if name is not None and name.value in [one.value for one in names[:index] if one]:
            message = f"another log policy is called {name.value!r}"
            path = key_path(key_path("log_policies", index), "name")
            yield ConfigProblem.at(name.at, path, message, "give each a name of its own")


def _length(root: YamlNode) -> Iterator[ConfigProblem]:
    """A Trial class has no `fit()` call that could give its length and unit."""
    searcher, name = root.get("searcher"), root.get("searcher", "name")
    if searcher is None or name is None or not names_trial_class(root):
        return
    field = "length_per_round" if name.value == "pbt" else "max_length"
    length, metric = searcher.get(field), searcher.get("time_metric")
    if length is not None:
        lacks = type(length.value) is int
    elif name.value in ("async_halving", "adaptive_asha"):
        lacks = metric is not None and metric.value not in ("batches", "epochs")
    else:
        lacks = name.value in ("single", "random", "grid", "optuna")
    if lacks:
        message = "a Trial class as entrypoint needs a length with a unit"
        where = length.at if length is not None else searcher.where
        hint = f"such as {field}: {{epochs: 10}} or {{batches: 1000}}"
        yield ConfigProblem.at(where, f"searcher.{field}", message, hint)
    if name.value == "custom" and searcher.get("unit") is None:
        message = "a Trial class as entrypoint needs the unit of the search method's lengths"
        yield ConfigProblem.at(searcher.where, "searcher.unit", message, "batches or epochs")


def _outputs(root: YamlNode) -> Iterator[ConfigProblem]:
    """A path inside of another would be a link inside of the linked directory."""
    paths = root.get("outputs", "paths")
    items = paths.value if paths is not None and paths.is_list else []
    given = [item for item in items if isinstance(item.value, str)]
    parts = [PurePosixPath(item.value).parts for item in given]
    for index, item in enumerate(given):
        for other, above in enumerate(parts):
            if other != index and parts[index][: len(above)] == above:
                message = f"{item.value} lies in {given[other].value}, which stays as a whole"
                yield ConfigProblem.at(item.at, "outputs", message, "name only one of them")


def _warm_start(root: YamlNode) -> Iterator[ConfigProblem]:
    """The code has to be a fork of a Python on the node, as it would be as a new process."""
    wanted, entrypoint = root.get("slurm", "warm_start"), root.get("entrypoint")
    if wanted is None or wanted.value is not True:
        return
    for keys in (("record",), ("metrics_from_log",), ("preempt_signal",)):
        if (node := root.get(*keys)) is not None and node.value not in (None, []):
            message = f"{keys[0]} needs a hook at the start of each Python"
            yield ConfigProblem.at(
                wanted.at, "slurm.warm_start", message, f"leave out warm_start or {keys[0]}"
            )
    runtime, prefix = root.get("slurm", "container"), root.get("slurm", "container_prefix")
    if any(node and node.value not in ("none", []) for node in (runtime, prefix)):
        message = "each run begins in a container of its own"
        yield ConfigProblem.at(wanted.at, "slurm.warm_start", message, "leave out warm_start")
    if entrypoint is not None and python_command(entrypoint.plain()) is None:
        message = "warm_start needs an entrypoint that is one Python command"
        advice = "such as python3 train.py, or python3 -m package.train"
        yield ConfigProblem.at(wanted.at, "slurm.warm_start", message, advice)


def _number(node: YamlNode | None, default: int) -> int:
    value: Any = node.value if node else None
    return value if type(value) is int else default
