"""`--config a.b=value`: set one key from the command line."""

from __future__ import annotations

from typing import Any

from detslurm.config.describe import found, members, type_info
from detslurm.config.errors import ConfigErrors, ConfigProblem, Position
from detslurm.config.merging import LENGTHS
from detslurm.config.reading import parse
from detslurm.config.schema.searcher import AnySearcher
from detslurm.config.schema.storage import CheckpointStorage
from detslurm.config.yaml_node import MAX_DEPTH, YamlNode, key_path

_OPTION = "--config "
_KINDS: dict[tuple[str, ...], Any] = {
    ("searcher", "name"): AnySearcher,
    ("checkpoint_storage", "type"): CheckpointStorage,
}


def apply_override(root: YamlNode, override: str) -> YamlNode:
    """The configuration with one key set; the value is YAML."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    name = f"{_OPTION}{path.strip()}"[:80]
    if not equals:
        raise _error(name, "", "there is no =", "write --config a.b=value")
    if not all(keys) or len(keys) > MAX_DEPTH:
        raise _error(name, "", "the key path is not of the form a.b.c", "write --config a.b=value")
    value = parse(text, name)
    if tuple(keys[:-1]) in LENGTHS and value.value is not None:
        keys, value = keys[:-1], YamlNode({keys[-1]: value}, Position(name))
    if keys == ["resources", "slots"]:  # beside the other name it would not count
        keys = ["resources", "slots_per_trial"]
    if tuple(keys) in _KINDS:
        root = _of_kind(root, keys[0], value.value, _KINDS[tuple(keys)])
    return _set(root, keys, value._replace(at=Position(name), key_at=Position(name)), name, "")


def _set(node: YamlNode, keys: list[str], value: YamlNode, name: str, path: str) -> YamlNode:
    below = key_path(path, keys[0])
    if len(keys) == 1:
        return node.put(keys[0], value)
    child = node.value.get(keys[0])
    if child is None or child.value is None:
        child = YamlNode({}, Position(name), Position(name))
    if not child.is_mapping:
        message = f"it is {found(child)} ({child.at}), and nothing goes below that"
        raise _error(name, below, message, _in_place_of(below, keys[1:]))
    return node.put(keys[0], _set(child, keys[1:], value, name, below))


def _of_kind(root: YamlNode, key: str, kind: Any, union: Any) -> YamlNode:
    """A section as another kind has it: without what the sources below gave for other kinds only.

    The value of another override stays, whatever their order: the check refuses it.
    """
    section = root.get(key)
    kinds: list[Any] = members(type_info(union))
    fields = {one.tag: {field.encode_name for field in one.fields} for one in kinds}
    known = isinstance(kind, str) and kind in fields
    if section is None or not section.is_mapping or not known:
        return root
    foreign = frozenset().union(*fields.values()) - fields[kind]
    kept = {
        name: child
        for name, child in section.value.items()
        if name not in foreign or child.where.source.startswith(_OPTION)
    }
    return root.put(key, section._replace(value=kept))


def _in_place_of(path: str, keys: list[str]) -> str:
    """How to write another value, or a mapping, in place of what stands there."""
    inner = "..."
    for key in reversed(keys):
        inner = f"{{{key}: {inner}}}"
    return f"write --config {path}=... or --config '{path}={inner}'"


def _error(name: str, path: str, message: str, hint: str = "") -> ConfigErrors:
    return ConfigErrors([ConfigProblem(name, None, None, path, message, hint)])
