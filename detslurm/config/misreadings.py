"""Valid configurations that many would misread."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from detslurm.config.argument_rules import possible_values
from detslurm.config.errors import Noted, Position
from detslurm.config.space_rules import alike_trials
from detslurm.config.yaml_node import YamlNode, key_path, space_nodes

_OWN_DATA = ("hyperparameters", "data")  # elsewhere the schema refuses text for a boolean
_VARIABLES = ("environment", "environment_variables")
_REFERENCE = re.compile(r"\$\{?[A-Z_]")
# $lr, ${lr}, {lr} and {{ lr }}; a name that the text itself sets is the shell's.
_PLACE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?|\{{1,2} ?([A-Za-z_][\w.]*) ?\}{1,2}")
_SET_IN_SHELL = re.compile(r"(?:^|[;&|(\n]|\bexport )\s*(\w+)=|\bfor (\w+) in\b|\bread (\w+)")
_HALVING = ("async_halving", "adaptive_asha")


def misreadings(root: YamlNode, leftovers: list[Noted]) -> dict[str, list[Noted]]:
    """The warnings about a checked configuration, with the places that each of them names."""
    return {
        "text, not a boolean (write true or false, or quotes)": [*_boolean_words(root)],
        "nothing expands the $ in these (export them in startup-hook.sh)": [
            Noted(".".join((*_VARIABLES, name)), at)
            for name, value, at in _variables(root)
            if _REFERENCE.search(value)
        ],
        "minval and maxval of type log are exponents of base": [*_values_as_exponents(root)],
        "max_time with this counts, not the deprecated max_length": leftovers,
        "nothing inserts hyperparameters here (`arguments` does)": [*_uninserted_values(root)],
        "all trials of the search have the same hyperparameters": [*alike_trials(root)],
    }


def _boolean_words(root: YamlNode) -> Iterator[Noted]:
    """Texts that YAML 1.1 takes for booleans; those of a list have the list's path."""
    for key in _OWN_DATA:
        if (node := root.get(key)) is not None:
            yield from (
                Noted(path, below.at) for path, below in _nodes(node, key) if below.was_bool
            )


def _values_as_exponents(root: YamlNode) -> Iterator[Noted]:
    """Ranges of type `log` whose bounds, exponents, look like the values themselves."""
    space = root.get("hyperparameters")
    for path, node in space_nodes(space, "hyperparameters") if space is not None else ():
        match node.plain() if node.get("type") else None:
            case {
                "type": "log",
                "base": int() | float() as base,
                "minval": int() | float() as low,
                "maxval": int() | float() as high,
            } if base > 1 and 0 < low < 0.1 and low <= high <= 1:
                found = f"values from {base**low:.4g} to {base**high:.4g}"
                meant = f"{math.log(low, base):.3g} and {math.log(high, base):.3g}"
                yield Noted(path, node.where, f"{found}; for {low:g} to {high:g} write {meant}")


def _nodes(node: YamlNode, path: str) -> Iterator[tuple[str, YamlNode]]:
    """The node and all below it."""
    yield path, node
    if node.is_mapping:
        below = [(key_path(path, key), child) for key, child in node.value.items()]
    else:
        below = [(path, item) for item in node.value] if node.is_list else []
    for place, child in below:
        yield from _nodes(child, place)


def _variables(root: YamlNode) -> Iterator[tuple[str, str, Position]]:
    """The names and values of environment variables."""
    devices = root.get(*_VARIABLES)
    for entries in devices.value.values() if devices is not None else ():
        for entry in entries.value or ():
            name, _, value = str(entry.value).partition("=")
            yield name, value, entry.at


def _uninserted_values(root: YamlNode) -> Iterator[Noted]:
    """Texts in the entrypoint that look like places for hyperparameters, such as `$lr`."""
    space, node = root.get("hyperparameters"), root.get("entrypoint")
    if space is None or node is None or not space.is_mapping:
        return
    words = node.plain()
    text = words if isinstance(words, str) else " ".join(map(str, words))
    names = {".".join(path) for path, _ in possible_values(space.plain())}
    names -= {found[found.lastindex or 0] for found in _SET_IN_SHELL.finditer(text)}
    names -= {name for name, _, _ in _variables(root)}
    places = [found[0] for found in _PLACE.finditer(text) if (found[1] or found[2]) in names]
    if places:
        yield Noted("entrypoint", node.at, ", ".join(dict.fromkeys(places)))


def leftover_lengths(root: YamlNode, layers: Iterable[YamlNode]) -> Iterator[Noted]:
    """The time_metric of a halving search that has max_time and max_length, too.

    Only Determined 0.38 takes all three, and there max_length has no part in the search. A complete
    configuration, of the store or as `experiment config` prints it, has the other two beside every
    max_length, and is known by its `stop_once: null`.
    """
    complete = {
        null.at.source
        for layer in layers
        if (searcher := layer.get("searcher")) is not None and searcher.is_mapping
        if (null := searcher.value.get("stop_once")) is not None and null.value is None
    }
    name, metric, most, length, stops = (
        root.get("searcher", key)
        for key in ("name", "time_metric", "max_time", "max_length", "stop_once")
    )
    if name is None or name.value not in _HALVING or (stops is not None and stops.value):
        return
    if metric and most and length and metric.at.source not in complete:
        yield Noted(
            "searcher.time_metric",
            metric.where,
            "trials are stopped, as in Determined 0.38; without time_metric and max_time they"
            " pause, and the best are promoted",
        )
