"""Merge configurations: the higher one wins, by the documented rule of each part.

Mappings merge recursively, everything else is replaced, with the exceptions of `_RULES`. Layers are
merged from the top down, and that order counts where a layer in the middle is of another kind
than its neighbours (another searcher, a constant between two nested hyperparameters): values of
lower layers still reach the top.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from detslurm.config.fields import Section
from detslurm.config.schema.searcher import Searcher
from detslurm.config.schema.storage import Storage
from detslurm.config.yaml_node import YamlNode

Path = tuple[str, ...]
Rule = Callable[[YamlNode, YamlNode, Path], YamlNode]


def merge(high: YamlNode, low: YamlNode, path: Path = ()) -> YamlNode:
    """The values of `high`, and where it sets nothing, those of `low`."""
    return _RULES.get(path, _generic)(high, low, path)


def _generic(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
    if not (high.is_mapping and low.is_mapping):
        return high
    return _by_key(high, low, path, merge)


def _by_key(high: YamlNode, low: YamlNode, path: Path, rule: Rule) -> YamlNode:
    merged = dict(high.value)
    for key, value in low.value.items():
        merged[key] = rule(merged[key], value, (*path, key)) if key in merged else value
    return high._replace(value=merged)


def _whole(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
    return high  # with the lower one's unit it would be two lengths, or two forms of arguments


def _anywhere(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
    # Below the user's own keys no rule applies, whatever the keys are called.
    if not (high.is_mapping and low.is_mapping):
        return high
    return _by_key(high, low, path, _anywhere)


def _hyperparameters(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
    if not (_nested(high) and _nested(low)):
        return high
    return _by_key(high, low, path, _hyperparameters)


def _nested(node: YamlNode) -> bool:
    return node.is_mapping and "type" not in node.value


def _union(tag: str, common: type[Section]) -> Rule:
    """Fields of a member merge only into the same member; those that all have in common always."""

    def rule(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
        ours, theirs = high.get(tag), low.get(tag)
        if ours is None or theirs is None or ours.value == theirs.value:
            return _generic(high, low, path)
        if not low.is_mapping:
            return high
        shared = {key: value for key, value in low.value.items() if key in common.__struct_fields__}
        return _generic(high, low._replace(value=shared), path)

    return rule


def _searcher(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
    """A lower layer's metrics don't count where the higher one names its one metric."""
    if low.is_mapping and high.get("metric") is not None and high.get("metrics") is None:
        low = low._replace(value={k: v for k, v in low.value.items() if k != "metrics"})
    return _union("name", Searcher)(high, low, path)


def _by(identity: Callable[[YamlNode], Hashable]) -> Rule:
    """The higher list, then those of the lower that it has none of the same identity for."""

    def rule(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
        if not (high.is_list and low.is_list):
            return high
        taken = {identity(item) for item in high.value}
        rest = [item for item in low.value if identity(item) not in taken]
        return high._replace(value=high.value + rest)

    return rule


def _mount(node: YamlNode) -> Hashable:
    return _hashable(node.plain().get("container_path") if node.is_mapping else node.plain())


def _policy(node: YamlNode) -> Hashable:
    fields = node.plain() if node.is_mapping else {}
    if fields.get("name") is not None:
        return _hashable(fields["name"])
    return _hashable([fields.get("action"), fields.get("pattern")])


def _itself(node: YamlNode) -> Hashable:
    return _hashable(node.plain())


def _hashable(value: Any) -> Hashable:
    # Equal by value and by type: 1, 1.0 and true are three things.
    return repr(value)


def _after(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
    """The lower list first, then the higher list: the later entry wins."""
    if not (high.is_list and low.is_list):
        return high
    return high._replace(value=low.value + high.value)


def _after_once(high: YamlNode, low: YamlNode, path: Path) -> YamlNode:
    if not (high.is_list and low.is_list):
        return high
    seen = {_itself(item) for item in low.value}
    return high._replace(value=low.value + [i for i in high.value if _itself(i) not in seen])


LENGTHS: frozenset[Path] = frozenset(
    (
        ("min_validation_period",),
        ("min_checkpoint_period",),
        ("searcher", "max_length"),
        ("searcher", "length_per_round"),
        ("searcher", "budget"),
    )
)
"""A count in one unit, the key below."""

_RULES: dict[Path, Rule] = {
    **dict.fromkeys(LENGTHS, _whole),
    ("arguments",): _whole,
    ("data",): _anywhere,
    ("hyperparameters",): _hyperparameters,
    ("searcher",): _searcher,
    ("checkpoint_storage",): _union("type", Storage),
    ("labels",): _by(_itself),
    ("log_policies",): _by(_policy),
    ("bind_mounts",): _by(_mount),
    ("environment", "environment_variables", "cpu"): _after,
    ("environment", "environment_variables", "cuda"): _after,
    ("environment", "environment_variables", "rocm"): _after,
    # Our own: the site's shell lines and modules come before the user's, and are not lost to them.
    ("slurm", "setup"): _after,
    ("slurm", "modules"): _after_once,
}
