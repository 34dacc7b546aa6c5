"""What is in order, and does not mean what many would read in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from detslurm.config.checking import Noted
from detslurm.config.yaml_node import YamlNode, key_path

_OWN_DATA = ("hyperparameters", "data")  # elsewhere the schema refuses text for a boolean
_VARIABLES = ("environment", "environment_variables")
_REFERENCE = re.compile(r"\$\{?[A-Z_]")


def boolean_words(root: YamlNode) -> Iterator[Noted]:
    """Texts that YAML 1.1 takes for booleans; those of a list have the list's path."""
    for key in _OWN_DATA:
        if (node := root.get(key)) is not None:
            yield from _boolean_words(node, key)


def _boolean_words(node: YamlNode, path: str) -> Iterator[Noted]:
    if node.was_bool:
        yield Noted(path, node.at)
    if node.is_mapping:
        below = [(key_path(path, key), child) for key, child in node.value.items()]
    else:
        below = [(path, item) for item in node.value] if node.is_list else []
    for place, child in below:
        yield from _boolean_words(child, place)


def unexpanded_variables(root: YamlNode) -> Iterator[Noted]:
    """Environment variables whose values name others, which a shell would have put in."""
    devices = root.get(*_VARIABLES)
    for entries in devices.value.values() if devices is not None else ():
        for entry in entries.value or ():
            name, _, value = entry.value.partition("=")
            if _REFERENCE.search(value):
                yield Noted(".".join((*_VARIABLES, name)), entry.at)
