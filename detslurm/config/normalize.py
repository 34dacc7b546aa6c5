"""One form for each thing: the several forms of users become the resolved form.

Runs on each source before merging, so that merging compares like with like. Whatever is not in
order is left as it is: the checker has named it already.
"""

from __future__ import annotations

from collections.abc import Callable

from detslurm.config.schema.environment import DEVICES
from detslurm.config.schema.recording import SOURCES
from detslurm.config.schema.slurm import canonical_limit
from detslurm.config.schema.training import canonical_signal
from detslurm.config.yaml_node import YamlNode

FREE = frozenset(
    (
        ("data",),
        ("hyperparameters",),
        ("tensorboard_storage",),
        ("data_layer",),
        ("internal",),
        ("environment", "pod_spec"),
        ("searcher", "sampler_args"),
        ("searcher", "pruner_args"),
    )
)
"""Sections of the user's own keys: null is a value there, elsewhere it means absent."""

Path = tuple[str, ...]


def normalize(root: YamlNode) -> YamlNode:
    """The same configuration without nulls and with one form for each thing."""
    return canonical(without_nulls(root))


def canonical(node: YamlNode) -> YamlNode:
    """The same with one form for each thing."""
    for path, change in _FORMS.items():
        node = _change(node, path, change)
    return node


def without_nulls(node: YamlNode, path: Path = ()) -> YamlNode:
    """Drop entries that are null, but not those of the user's own."""
    if path in FREE:
        return node
    if node.is_mapping:
        kept = {k: v for k, v in node.value.items() if v.value is not None}
        return node._replace(value={k: without_nulls(v, (*path, k)) for k, v in kept.items()})
    if node.is_list:
        return node._replace(value=[without_nulls(item, (*path, "")) for item in node.value])
    return node


def _change(node: YamlNode, path: Path, change: Callable[[YamlNode], YamlNode]) -> YamlNode:
    child = node.get(path[0])
    if child is None:
        return node
    new = change(child) if len(path) == 1 else _change(child, path[1:], change)
    return node.put(path[0], new)


def _image(node: YamlNode) -> YamlNode:
    if isinstance(node.value, str):
        text = node._replace(key_at=None)
        return node._replace(value=dict.fromkeys(DEVICES, text))
    if node.is_mapping and "gpu" in node.value:
        gpu = node.value["gpu"]
        rest = {key: value for key, value in node.value.items() if key != "gpu"}
        return node._replace(value={"cuda": gpu, **rest})
    return node


def _variables(node: YamlNode) -> YamlNode:
    if node.is_list:
        return node._replace(value=dict.fromkeys(DEVICES, node._replace(key_at=None)))
    if node.is_mapping and (gpu := node.get("gpu")) is not None and gpu.is_list:
        rest = {key: value for key, value in node.value.items() if key != "gpu"}
        cuda = rest.get("cuda", gpu._replace(value=[]))
        if cuda.is_list:
            return node._replace(
                value={**rest, "cuda": cuda._replace(value=gpu.value + cuda.value)}
            )
    return node


def _policies(node: YamlNode) -> YamlNode:
    return node._replace(value=list(map(_policy, node.value))) if node.is_list else node


def _policy(node: YamlNode) -> YamlNode:
    kind = node.get("action", "type")
    return node.put("action", kind) if kind else node


def _limit(node: YamlNode) -> YamlNode:
    text = canonical_limit(node.value) if isinstance(node.value, int | str) else None
    return node if text is None else node._replace(value=text)


def _outputs(node: YamlNode) -> YamlNode:
    return node._replace(value={"paths": node._replace(key_at=None)}) if node.is_list else node


def _signal(node: YamlNode) -> YamlNode:
    name = canonical_signal(node.value) if isinstance(node.value, str) else None
    return node if name is None else node._replace(value=name)


def _storage(node: YamlNode) -> YamlNode:
    old = node.get("checkpoint_path")
    if old is None or node.get("type") is None or node.value["type"].value != "shared_fs":
        return node
    rest = {key: value for key, value in node.value.items() if key != "checkpoint_path"}
    return node._replace(value={"storage_path": old, **rest})


def _slots(node: YamlNode) -> YamlNode:
    # Determined's name for commands, which templates for both kinds of task have.
    other = node.get("slots")
    if other is None:
        return node
    rest = {key: value for key, value in node.value.items() if key != "slots"}
    return node._replace(value={"slots_per_trial": other, **rest})


def _off(node: YamlNode) -> YamlNode:
    # As null, by which `leftover_lengths` knows records of the older generation.
    return node._replace(value=None) if node.value is False else node


def _record(node: YamlNode) -> YamlNode:
    if node.is_mapping:
        given = node.get("from")
        return node.put("from", _sources(given)) if given is not None else node
    known = node.is_list and all(item.value in SOURCES for item in node.value)
    if not known and node.value != "auto":
        return node
    return node._replace(value={"from": _sources(node._replace(key_at=None))})


def _sources(node: YamlNode) -> YamlNode:
    if node.value != "auto":
        return node
    return node._replace(value=[YamlNode(name, node.at) for name in SOURCES])


def _objectives(node: YamlNode) -> YamlNode:
    """The first of `metrics` is the `metric`, for all that needs a single metric."""
    metrics = node.get("metrics")
    if metrics is None or not metrics.is_list or not metrics.value or node.get("metric"):
        return node
    first = metrics.value[0]
    if (name := first.get("name")) is None:
        return node
    smaller = first.get("smaller_is_better") or YamlNode(True, first.at)
    filled = node.put("metric", name._replace(key_at=None))
    return filled if node.get("smaller_is_better") else filled.put("smaller_is_better", smaller)


_FORMS: dict[Path, Callable[[YamlNode], YamlNode]] = {
    ("environment", "image"): _image,
    ("environment", "environment_variables"): _variables,
    ("log_policies",): _policies,
    ("record",): _record,
    ("resources",): _slots,
    ("slurm", "time"): _limit,
    ("preempt_signal",): _signal,
    ("outputs",): _outputs,
    ("checkpoint_storage",): _storage,
    ("searcher", "stop_once"): _off,
    ("searcher",): _objectives,
}
