"""Configurations before they are typed: plain values with their positions in a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from detslurm.config.errors import ConfigErrors, ConfigProblem, Position

Scalar = str | int | float | bool | None
MAX_DEPTH = 60
MAX_VALUES = 200_000
_INT64 = range(-(2**63), 2**63)


class YamlNode(NamedTuple):
    """A value and its position; `key_at` is the position of its key, inside a mapping.

    `was_bool` marks an unquoted text that YAML 1.1 takes for a boolean.
    """

    value: Any  # Scalar | list[YamlNode] | dict[str, YamlNode]
    at: Position
    key_at: Position | None = None
    was_bool: bool = False

    @property
    def where(self) -> Position:
        """The position to report when the whole entry is meant: that of its key."""
        return self.key_at or self.at

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    def get(self, *path: str) -> YamlNode | None:
        """The node below, by keys; None where there is none or it is null."""
        node: YamlNode | None = self
        for key in path:
            if node is None or not node.is_mapping:
                return None
            node = node.value.get(key)
        return None if node is None or node.value is None else node

    def put(self, key: str, child: YamlNode) -> YamlNode:
        """The same mapping with one entry more, or with another entry."""
        return self._replace(value={**self.value, key: child})

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


def key_path(path: str, key: str | int) -> str:
    """The dotted path of an entry: `a.b[2].c`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def scalar_problem(value: Scalar) -> str | None:
    """Why a scalar can't be in a configuration, whatever the key; None if it can."""
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number is expected"
    if isinstance(value, int) and value not in _INT64:
        return "the integer is too big: at most 64 bits are expected"
    if isinstance(value, str):
        if "\0" in value:
            return "the text holds a NUL character"
        if any("\ud800" <= c <= "\udfff" for c in value):
            return "the text holds half a surrogate pair, which is not a character"
    return None


def locate(plain: Any, at: Position) -> YamlNode:
    """Nodes of plain data that does not come from a file: all have the same position."""
    problems: list[ConfigProblem] = []
    node = _locate(plain, at, "", problems, [0])
    if problems:
        raise ConfigErrors(problems)
    return node


def _locate(
    plain: Any, at: Position, path: str, problems: list[ConfigProblem], count: list[int]
) -> YamlNode:
    count[0] += 1
    depth = path.count(".") + path.count("[")
    if depth > MAX_DEPTH or count[0] > MAX_VALUES:
        raise ConfigErrors(
            [ConfigProblem.at(at, path[:80], "the data is nested too deeply, or too big")]
        )
    if isinstance(plain, Mapping):
        entries = {}
        for key, value in plain.items():
            wrong = scalar_problem(key) if isinstance(key, str) else "keys must be text"
            if wrong:
                problems.append(ConfigProblem.at(at, path, wrong))
            entries[str(key)] = _locate(value, at, key_path(path, str(key)), problems, count)
        return YamlNode(entries, at)
    if isinstance(plain, list | tuple):
        items = [
            _locate(item, at, key_path(path, i), problems, count) for i, item in enumerate(plain)
        ]
        return YamlNode(items, at)
    if not isinstance(plain, str | int | float | None):
        message: str | None = f"a value of type {type(plain).__name__} can't be configured"
    else:
        message = scalar_problem(plain)
    if message:
        problems.append(ConfigProblem.at(at, path, message))
    return YamlNode(plain, at)


# -- hyperparameter spaces ----------------------------------------------------------------------


def val_nodes(node: YamlNode) -> list[YamlNode]:
    """The vals of a choice; none of anything else."""
    kind, vals = node.get("type"), node.get("vals")
    is_choice = kind is not None and kind.value == "choice" and vals is not None and vals.is_list
    return list(vals.value) if is_choice and vals is not None else []


def space_nodes(
    space: YamlNode, path: str, *, in_lists: bool = False
) -> Iterator[tuple[str, YamlNode]]:
    """All mappings in a hyperparameter space with their paths, outer ones first: groups, ranges,
    choices, and what the vals of choices hold. A hyperparameter may be called `type`."""
    for key, child in space.value.items() if space.is_mapping else ():
        yield from value_nodes(child, key_path(path, key), in_lists=in_lists)


def value_nodes(
    node: YamlNode, path: str, *, in_lists: bool = False
) -> Iterator[tuple[str, YamlNode]]:
    """The same of one hyperparameter, or of a val. A list is a constant, whatever is in it."""
    for index, item in enumerate(node.value if in_lists and node.is_list else ()):
        yield from value_nodes(item, key_path(path, index), in_lists=True)
    if not node.is_mapping:
        return
    yield path, node
    if "type" not in node.value:
        yield from space_nodes(node, path, in_lists=in_lists)
    for index, val in enumerate(val_nodes(node)):
        yield from value_nodes(val, key_path(f"{path}.vals", index), in_lists=in_lists)
