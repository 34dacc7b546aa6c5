"""`--config a.b=value`: set one key from the command line."""

from __future__ import annotations

from detslurm.config.describe import found
from detslurm.config.errors import ConfigErrors, ConfigProblem, Position
from detslurm.config.merging import LENGTHS
from detslurm.config.reading import parse
from detslurm.config.yaml_node import MAX_DEPTH, YamlNode, key_path


def apply_override(root: YamlNode, override: str) -> YamlNode:
    """The configuration with one key set; the value is YAML."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    name = f"--config {path.strip()}"[:80]
    if not equals:
        raise _error(name, "", "there is no =", "write --config a.b=value")
    if not all(keys) or len(keys) > MAX_DEPTH:
        raise _error(name, "", "the key path is not of the form a.b.c", "write --config a.b=value")
    value = parse(text, name)
    if tuple(keys[:-1]) in LENGTHS and value.value is not None:
        keys, value = keys[:-1], YamlNode({keys[-1]: value}, Position(name))
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


def _in_place_of(path: str, keys: list[str]) -> str:
    """How to write another value, or a mapping, in place of what stands there."""
    inner = "..."
    for key in reversed(keys):
        inner = f"{{{key}: {inner}}}"
    return f"write --config {path}=... or --config '{path}={inner}'"


def _error(name: str, path: str, message: str, hint: str = "") -> ConfigErrors:
    return ConfigErrors([ConfigProblem(name, None, None, path, message, hint)])
